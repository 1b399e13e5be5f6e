select json_group_array(json_array(
    hex(id), kind, name, key, declared, override, per, json(iif(is_blocking, 'true', 'false')), held, hex(holder),
    json(log), next_at, turn, lines
))
from (select * from holdfast_gates where lines = 0 limit ?)
