insert into holdfast.failures (
    job, run, generation, started_at, ended_at, worker, kind, error_type, message, traceback
)
select job, run, generation, started_at, ended_at, worker, kind, error_type, message, traceback
from json_to_recordset($1::text::json) as new (
    job uuid, run integer, generation integer, started_at bigint, ended_at bigint, worker uuid, kind text,
    error_type text, message text, traceback text
)
