-- At each gate, so many of those that are parked there, the next one first. ?1 how many, ?2 the gates.
select json_group_array(json((
    select json_group_array(json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant))
    from (
        select * from holdfast_lines where state = 2 and parked_at = wanted.value
        order by priority desc, turn, seq limit ?1
    )
)))
from json_each(?2) as wanted
