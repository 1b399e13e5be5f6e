select json_group_array(json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant))
from holdfast_lines where seq in (select value from json_each(?))
