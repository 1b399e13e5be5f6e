select json_group_array(json_array(
    hex(id), json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant)
))
from holdfast_lines where id in (values /*rows*/(?)/*rows*/)
