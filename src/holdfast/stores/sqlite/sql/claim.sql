-- What a claim takes from one queue, as one row, in the order to start in.
select json_group_array(json_array(
    seq, hex(id), task, priority, args, attempt + 1, max_attempts, runs + 1, crashes, waits, pool_tries, edits,
    delivery, created_at, due_at, idempotency_key, unique_key is not null, context
))
from (
    select * from holdfast_jobs
    where stage = 2 and queue = ? and (expires_at is null or expires_at > ?)
    order by priority desc, lane, place
    limit ?
)
