-- Those whose turn is next, of one queue and priority; not those that another claimer is at.
-- $1 queue, $2 priority, $3 how many.
select id, queue, priority, gates, state, parked_at, turn, tenant
from holdfast.lines
where state = 1 and queue = $1 and priority = $2
order by turn, id
limit $3
for update skip locked
