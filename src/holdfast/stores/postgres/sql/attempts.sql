-- Put in order afterwards: an index that has the order already would be read from end to end.
select run, generation, started_at, ended_at, worker, kind, error_type, message, traceback
from (select * from holdfast.failures where job = $1 offset 0) as history
order by seq
