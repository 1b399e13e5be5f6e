-- At each gate, so many of those of each queue that are parked there, the next one first. ?1 how many, ?2 the gates.
-- The queues are asked for one by one, so that no more lines are read than are wanted.
select json_group_array(json((
    with recursive queues (name) as (
        select min(queue) from holdfast_lines where state = 2 and parked_at = wanted.value
        union all
        select (select min(queue) from holdfast_lines where state = 2 and parked_at = wanted.value and queue > name)
        from queues
        where name is not null
    )
    select json_group_array(json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant))
    from (
        select *
        from queues
        cross join holdfast_lines on seq in (
            select seq from holdfast_lines where state = 2 and parked_at = wanted.value and queue = queues.name
            order by priority desc, turn, seq limit ?1
        )
        order by queue, priority desc, turn, seq
    )
)))
from json_each(?2) as wanted
