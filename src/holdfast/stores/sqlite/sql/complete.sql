-- The fence: only the holder of the current claim completes a job.
update holdfast_jobs
set stage = 4, finished_at = ?1, result = done.column3, error_type = null, error_message = null
from (values /*rows*/(?, ?, ?)/*rows*/) as done
where id = done.column1 and token = done.column2 and stage = 3
