-- All that can change of a gate.
update holdfast_gates
set held = new.column2, holder = new.column3, log = new.column4, next_at = new.column5, turn = new.column6,
    declared = new.column7, override = new.column8, per = new.column9, is_blocking = new.column10, lines = new.column11
from (values /*rows*/(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)/*rows*/) as new
where seq = new.column1
