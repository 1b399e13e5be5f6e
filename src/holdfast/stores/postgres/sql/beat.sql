-- Its own row, and what the store thinks it holds: one row for each job, or one without; none if it is not alive.
-- $1 worker, $2 the time, $3 whether it holds its lock.
with
beaten as (
    update holdfast.workers
    set beat = beat + 1, beat_at = coalesce($2::bigint, holdfast.now()), is_locked = $3
    where id = $1 and dead_at is null
    returning id, set_config('synchronous_commit', 'off', true)
)
select job.id, job.token, job.cancel_requested_at
from beaten
left join (
    select id, token, cancel_requested_at, worker from holdfast.jobs where stage = 3 and worker = $1
) as job on true
