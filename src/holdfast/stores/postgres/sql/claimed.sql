-- What an earlier claim under the same token took: its answer was lost.
select
    id, token, task, queue, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
    delivery, created_at, due_at, idempotency_key, unique_key is not null as has_unique_key, context, lane, place,
    line
from holdfast.jobs
where stage = 3 and worker = $1 and token = $2
