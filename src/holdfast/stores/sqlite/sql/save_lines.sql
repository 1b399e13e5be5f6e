-- All that can change of a line. They are there, so this inserts nothing: it is faster than an update, for which SQLite
-- gathers all rows before it changes the first.
insert into holdfast_lines (seq, id, queue, priority, gates, state, parked_at, turn)
values /*rows*/(?, x'', '', ?, '', ?, ?, ?)/*rows*/
on conflict (seq) do update
set priority = excluded.priority, state = excluded.state, parked_at = excluded.parked_at, turn = excluded.turn
