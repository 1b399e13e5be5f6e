update holdfast_jobs
set stage = 3, worker = ?, token = ?, started_at = ?, attempt = attempt + 1, runs = runs + 1
where seq in (select value from json_each(?))
