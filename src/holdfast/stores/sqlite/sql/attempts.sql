select json_group_array(json_array(
    run, generation, started_at, ended_at, hex(worker), kind, error_type, message, traceback
))
from (select * from holdfast_failures where job = ? order by seq)
