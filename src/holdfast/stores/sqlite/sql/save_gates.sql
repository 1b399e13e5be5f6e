-- What changes of a gate when jobs pass through it. They are there, so this inserts nothing, as in save_lines.sql.
insert into holdfast_gates (
    seq, id, kind, name, key, declared, per, is_blocking, held, holder, log, next_at, turn, lines
)
values /*rows*/(?, x'', 0, '', '', 0, 0, 0, ?, ?, ?, ?, ?, 0)/*rows*/
on conflict (seq) do update
set held = excluded.held, holder = excluded.holder, log = excluded.log, next_at = excluded.next_at,
    turn = excluded.turn
