-- Those of these lines that are still closed, and that nobody else is at. Whether jobs stand in them is asked after that:
-- until then, others may open one, take a job from it and close it again. $1 lines.
select id
from holdfast.lines
where id = any ($1::uuid[]) and (state = 0) is true
order by id
for update skip locked
