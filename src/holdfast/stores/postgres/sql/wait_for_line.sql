-- A line, when the claimer that is at it has done, if it is still open. One, so that nobody waits in a circle.
select id, queue, priority, gates, state, parked_at, turn, tenant
from holdfast.lines
where id = $1 and (state = 1) is true
for update
