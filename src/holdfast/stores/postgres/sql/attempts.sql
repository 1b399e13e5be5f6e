select run, generation, started_at, ended_at, worker, kind, error_type, message, traceback
from holdfast.failures
where job = $1
order by seq
