select
    id, name, host, pid, queues, started_at, beat_at, beat, dead_at,
    (select count(*) from holdfast.jobs where stage = 3 and worker = w.id) as active, is_quiet, tasks
from holdfast.workers as w
