-- Jobs, and the time. {jobs} is one of the selections in select_*.sql.
select
    id, task, queue, priority, stage, lane, place, args, max_attempts, delivery, created_at, due_at,
    attempt, runs, crashes, waits, pool_tries, generation, edits, expires_at, started_at, finished_at,
    worker, token, result, idempotency_key, unique_key, line, tags, context,
    error_type, error_message, cancel_requested_at, cancel_reason, breaker,
    holdfast.now() as now
from ({jobs}) as jobs
