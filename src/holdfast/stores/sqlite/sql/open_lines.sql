-- Those whose turn is next, of one queue and priority.
select json_group_array(json_array(hex(id), queue, priority, hex(gates), state, hex(parked_at), turn, hex(tenant)))
from (select * from holdfast_lines where state = 1 and queue = ? and priority = ? order by turn, id limit ?)
