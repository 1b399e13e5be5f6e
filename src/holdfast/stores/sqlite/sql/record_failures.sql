insert into holdfast_failures (
    job, run, generation, started_at, ended_at, worker, kind, error_type, message, traceback
)
values /*rows*/(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)/*rows*/
