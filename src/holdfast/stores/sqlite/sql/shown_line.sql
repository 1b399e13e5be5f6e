-- The line of a job, with ids instead of numbers.
select json_group_array(json_array(
    hex(line.id), line.queue, line.priority,
    json((
        select json_group_array(hex(gate.id))
        from json_each(line.gates) as each cross join holdfast_gates as gate on gate.seq = each.value
    )),
    line.state,
    (select hex(gate.id) from holdfast_gates as gate where gate.seq = line.parked_at),
    line.turn,
    (select hex(gate.id) from holdfast_gates as gate where gate.seq = line.tenant)
))
from holdfast_lines as line where line.id = ?
