insert into holdfast_gates (
    id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
)
values /*rows*/(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)/*rows*/
