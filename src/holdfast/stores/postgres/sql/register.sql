-- Registered again, a worker counts on, so that what was observed of its earlier life can't end this one. Answers with the time.
-- $1 id, $2 name, $3 host, $4 pid, $5 queues, $6 the time, $7 whether it holds its lock, $8 tasks.
insert into holdfast.workers (id, name, host, pid, queues, started_at, beat_at, beat, dead_at, is_locked, tasks)
select $1, $2, $3, $4, $5, now, now, 1, null, $7, $8
from (select coalesce($6::bigint, holdfast.now()) as now) as moment
on conflict (id) do update set
    name = excluded.name, host = excluded.host, pid = excluded.pid, queues = excluded.queues,
    started_at = excluded.started_at, beat_at = excluded.beat_at, beat = workers.beat + 1, dead_at = null,
    is_locked = excluded.is_locked, is_empty = false, is_quiet = false, tasks = excluded.tasks
returning started_at
