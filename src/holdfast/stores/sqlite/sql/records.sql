-- Jobs as one row of JSON. {jobs} is one of the selections in select_*.sql.
select json_group_array(json_array(
    hex(id), task, queue, priority, stage, lane, place, args, max_attempts, delivery, created_at, due_at,
    attempt, runs, crashes, waits, pool_tries, generation, edits, expires_at, started_at, finished_at,
    hex(worker), hex(token), result, idempotency_key, unique_key,
    hex((select each.id from holdfast_lines as each where each.seq = job.line)), tags, context,
    error_type, error_message, cancel_requested_at, cancel_reason, breaker
))
from ({jobs}) as job
