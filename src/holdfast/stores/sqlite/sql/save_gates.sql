-- What changes of a gate when jobs pass through it.
update holdfast_gates
set held = new.column2, holder = new.column3, log = new.column4, next_at = new.column5, turn = new.column6
from (values /*rows*/(?, ?, ?, ?, ?, ?)/*rows*/) as new
where id = new.column1
