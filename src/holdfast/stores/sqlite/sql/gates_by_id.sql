select json_group_array(json_array(hex(id), json_array(
    seq, kind, name, key, declared, override, per, is_blocking, held, holder, json(log), next_at, turn, lines
)))
from holdfast_gates where id in (values /*rows*/(?)/*rows*/)
