-- All that can change of a line.
update holdfast_lines
set state = new.column2, parked_at = new.column3, turn = new.column4
from (values /*rows*/(?, ?, ?, ?)/*rows*/) as new
where id = new.column1
