insert into holdfast.schedules (name, next_tick, orphaned_at, record)
select * from unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) as new (name, next_tick, orphaned_at, record)
order by name
on conflict (name) do update set
    next_tick = excluded.next_tick,
    orphaned_at = excluded.orphaned_at,
    record = excluded.record
