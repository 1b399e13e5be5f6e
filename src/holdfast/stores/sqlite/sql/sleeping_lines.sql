-- Of these lines, those that are not open; and the numbers of all that are there.
select
    json_group_array(json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant)) filter (where state <> 1),
    json_group_array(seq)
from holdfast_lines where seq in (select value from json_each(?))
