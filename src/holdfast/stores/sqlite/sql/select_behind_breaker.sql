select * from holdfast_jobs
where stage = 1 and breaker is not null and breaker = ?
order by due_at, id
limit ?
