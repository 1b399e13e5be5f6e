-- What the store thinks that a worker holds: those of these ids, and what it was given since some time. Some twice.
-- $1 worker, $2 ids, $3 the time.
select id, token, started_at, cancel_requested_at
from holdfast.jobs
where id = any ($2::uuid[]) and worker = $1 and (stage = 3) is true
union all
select id, token, started_at, cancel_requested_at
from holdfast.jobs
where stage = 3 and worker = $1 and started_at >= $3
