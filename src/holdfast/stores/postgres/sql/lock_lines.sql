-- In the order of ids, as everybody does who waits for several lines.
select id, queue, priority, gates, state, parked_at, turn, tenant
from holdfast.lines
where id = any ($1::uuid[])
order by id
for update
