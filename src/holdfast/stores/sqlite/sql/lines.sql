select json_group_array(json_array(hex(id), queue, priority, hex(gates), state, hex(parked_at), turn, hex(tenant)))
from holdfast_lines where id in (values /*rows*/(?)/*rows*/)
