-- Those whose turn is next, of one queue and priority.
select json_group_array(json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant))
from (select * from holdfast_lines where state = 1 and queue = ? and priority = ? order by turn, seq limit ?)
