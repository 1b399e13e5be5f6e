-- At each gate, so many of those that are parked there. ?1 how many.
with given (most) as (select ?1)
select json_group_array(json_array(
    hex(line.id), line.queue, line.priority, hex(line.gates), line.state, hex(line.parked_at), line.turn,
    hex(line.tenant)
))
from (values /*rows*/(?)/*rows*/) as wanted
cross join holdfast_lines as line on line.seq in (
    select seq from holdfast_lines where state = 2 and parked_at = wanted.column1
    order by priority desc, turn, id limit ?1
)
