insert into holdfast_gates (
    id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
)
values /*rows*/(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)/*rows*/
on conflict (id) do update
set declared = excluded.declared, override = excluded.override, per = excluded.per,
    is_blocking = excluded.is_blocking, held = excluded.held, holder = excluded.holder, log = excluded.log,
    next_at = excluded.next_at, turn = excluded.turn, lines = excluded.lines
