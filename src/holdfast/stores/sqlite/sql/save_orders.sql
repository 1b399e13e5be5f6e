-- The same of gates that keep an order, of which only the holder changes.
insert into holdfast_gates (seq, id, kind, name, key, declared, per, is_blocking, held, holder, log, turn, lines)
values /*rows*/(?, x'', 0, '', '', 0, 0, 0, 0, ?, '', 0, 0)/*rows*/
on conflict (seq) do update set holder = excluded.holder
