-- Of the first so many lines of one queue and priority, those that lead to no rate with a window shorter than this.
-- ?1 queue, ?2 priority, ?3 how many to look at, ?4 microseconds, ?5 how many to answer with.
select json_group_array(json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant))
from (
    select *
    from (select * from holdfast_lines where state = 1 and queue = ?1 and priority = ?2 order by turn, seq limit ?3)
    where not exists (
        select 1
        from json_each(gates) as way
        cross join holdfast_gates as gate on gate.seq = way.value
        where gate.kind = 2 and gate.per < ?4
    )
    order by turn, seq
    limit ?5
)
