-- Of these lines, those that are not open; and of those that are, their numbers and priorities.
select
    json_group_array(json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant)) filter (where state <> 1),
    json_group_array(json_array(seq, priority)) filter (where state = 1)
from holdfast_lines where seq in (select value from json_each(?))
