-- In which lines those of these jobs stand that are ready; they are locked. $1 jobs, $2 the time.
select id, line
from holdfast.jobs
where id = any ($1::uuid[]) and (stage = 2) is true and (expires_at is null or expires_at > $2)
order by id
for update skip locked
