-- Of the first so many lines of one queue and priority, those that lead to no rate with a window shorter than this; not
-- those that another claimer is at.
-- $1 queue, $2 priority, $3 how many to look at, $4 microseconds, $5 how many to answer with.
select id, queue, priority, gates, state, parked_at, turn, tenant
from holdfast.lines
-- "is true" hides other indexes from the planner: these are looked up by their ids.
where (state = 1) is true and id = any (array(
    select front.id
    from (
        select id, gates from holdfast.lines where state = 1 and queue = $1 and priority = $2 order by turn, id limit $3
    ) as front
    where not exists (
        select from holdfast.gates as gate where gate.id = any (front.gates) and (gate.kind = 2) is true and gate.per < $4
        offset 0
    )
))
order by turn, id
limit $5
for update skip locked
