-- Jobs that are locked begin, and what has changed of lines and gates is kept. {traffic} is save_traffic.sql, but for its
-- answer; $1 to $24 as there. $25 worker, $26 token, $27 jobs.
{traffic},
taken as (
    update holdfast.jobs as job
    set stage = 3, worker = $25, token = $26, started_at = $21, attempt = attempt + 1, runs = runs + 1
    where job.id = any ($27::uuid[])
    returning
        job.id, token, task, queue, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
        delivery, created_at, due_at, idempotency_key, unique_key is not null as has_unique_key, context,
        line is not null as is_lined
),
-- As in claim.sql; but what passes a limit, a rate or an order must not be forgotten either, or others would pass too.
durability as materialized (
    select set_config(
        'synchronous_commit',
        case
            when cardinality($9::uuid[] || $11::uuid[] || $14::uuid[]) > 0
                or exists (select from taken where delivery = 1)
            then current_setting('synchronous_commit')
            else 'off'
        end,
        true
    )
)
select taken.*, room.queues from taken cross join durability cross join room
