insert into holdfast_lines (id, queue, priority, gates, state, parked_at, turn, tenant)
values /*rows*/(?, ?, ?, ?, ?, ?, ?, ?)/*rows*/
on conflict (id) do update
set state = excluded.state, parked_at = excluded.parked_at, turn = excluded.turn
