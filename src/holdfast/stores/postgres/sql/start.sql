-- Jobs that are locked begin. $1 worker, $2 token, $3 jobs, $4 the time.
with
taken as (
    update holdfast.jobs as job
    set stage = 3, worker = $1, token = $2, started_at = $4, attempt = attempt + 1, runs = runs + 1
    where job.id = any ($3::uuid[])
    returning
        job.id, token, task, queue, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
        delivery, created_at, due_at, idempotency_key, unique_key is not null as has_unique_key, context,
        line is not null as is_lined
),
-- As in claim.sql.
durability as materialized (
    select set_config(
        'synchronous_commit',
        case when exists (select from taken where delivery = 1) then current_setting('synchronous_commit') else 'off' end,
        true
    )
)
select taken.* from taken cross join durability
