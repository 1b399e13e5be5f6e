-- Registered again, a worker counts on, so that what was observed of its earlier life can't end this one.
insert into holdfast_workers (id, name, host, pid, queues, tasks, started_at, beat_at, beat, dead_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, 1, null)
on conflict (id) do update set
    name = excluded.name, host = excluded.host, pid = excluded.pid, queues = excluded.queues,
    tasks = excluded.tasks, started_at = excluded.started_at, beat_at = excluded.beat_at, beat = beat + 1,
    dead_at = null, is_quiet = 0
