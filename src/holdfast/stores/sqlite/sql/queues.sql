select json_group_array(json_array(
    name, waiting, scheduled, last_place, declared_bound, override_bound, scheduled_bound, paused_at
))
from (select * from holdfast_queues order by name)
