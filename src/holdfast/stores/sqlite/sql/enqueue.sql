-- Many rows in one statement: each step of SQLite gives up Python's lock, and a busy
-- event loop would take it away from us once a row.
insert into holdfast_jobs (
    id, task, queue, priority, stage, place, args, max_attempts, delivery,
    created_at, due_at, expires_at, idempotency_key, unique_key, line, tags, context
)
values /*rows*/(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)/*rows*/
