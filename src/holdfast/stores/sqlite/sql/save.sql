-- Everything about a job that can change. One that goes dead is marked, for somebody to be told.
update holdfast_jobs
set stage = new.column2, lane = new.column3, place = new.column4, args = new.column5, attempt = new.column6,
    runs = new.column7, crashes = new.column8, waits = new.column9, pool_tries = new.column10,
    generation = new.column11, edits = new.column12, due_at = new.column13, expires_at = new.column14,
    started_at = new.column15, finished_at = new.column16, worker = new.column17, token = new.column18,
    result = new.column19, error_type = new.column20, error_message = new.column21,
    cancel_requested_at = new.column22, cancel_reason = new.column23, breaker = new.column24,
    is_unannounced = case when new.column2 = 6 then is_unannounced or stage <> 6 else 0 end
from (values /*rows*/(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)/*rows*/) as new
where id = new.column1
