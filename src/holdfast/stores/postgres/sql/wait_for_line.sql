-- The next one, when the claimer that is at it has done.
-- $1 queue, $2 priority.
select id, queue, priority, gates, state, parked_at, turn, tenant
from holdfast.lines
where state = 1 and queue = $1 and priority = $2
order by turn, id
limit 1
for update
