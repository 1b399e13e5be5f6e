select json_group_array(json_array(
    seq, kind, name, key, declared, override, per, is_blocking, held, holder, json(log), next_at, turn, lines
))
from (select * from holdfast_gates where lines = 0 limit ?)
