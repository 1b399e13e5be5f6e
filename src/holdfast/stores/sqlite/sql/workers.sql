select json_group_array(json_array(
    hex(id), name, host, pid, queues, started_at, beat_at, beat, dead_at,
    (select count(*) from holdfast_jobs where stage = 3 and worker = holdfast_workers.id),
    json(iif(is_quiet, 'true', 'false')), tasks
))
from holdfast_workers
