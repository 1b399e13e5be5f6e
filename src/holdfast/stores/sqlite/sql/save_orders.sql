-- The same of gates that keep an order.
insert into holdfast_gates (seq, id, kind, name, key, declared, per, is_blocking, held, holder, log, turn, lines)
values /*rows*/(?, x'', 0, '', '', 0, 0, 0, ?, ?, '', 0, 0)/*rows*/
on conflict (seq) do update set held = excluded.held, holder = excluded.holder
