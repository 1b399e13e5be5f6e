-- What an earlier claim under the same token took: its answer was lost.
select json_group_array(json_array(
    seq, hex(id), task, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
    delivery, created_at, due_at, idempotency_key, unique_key is not null, context, queue
))
from (
    select * from holdfast_jobs where stage = 3 and worker = ? and token = ? order by priority desc, lane, place
)
