insert into holdfast_schedules (name, next_tick, orphaned_at, record)
values /*rows*/(?, ?, ?, ?)/*rows*/
on conflict (name) do update set
    next_tick = excluded.next_tick,
    orphaned_at = excluded.orphaned_at,
    record = excluded.record
