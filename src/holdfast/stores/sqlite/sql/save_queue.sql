insert into holdfast_queues (
    name, waiting, scheduled, last_place, declared_bound, override_bound, scheduled_bound, paused_at, turn
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (name) do update set
    waiting = excluded.waiting,
    scheduled = excluded.scheduled,
    last_place = excluded.last_place,
    declared_bound = excluded.declared_bound,
    override_bound = excluded.override_bound,
    scheduled_bound = excluded.scheduled_bound,
    paused_at = excluded.paused_at,
    turn = excluded.turn
