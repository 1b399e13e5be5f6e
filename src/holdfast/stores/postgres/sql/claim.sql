-- Take ready jobs, at most so many of each queue. A row without an id tells about the claim as a whole, then comes one
-- for each job; no row at all if the worker is not alive.
-- From queues that have work in lines nothing is taken: see lined.py.
-- $1 worker, $2 token, $3 queues, $4 slots of each, $5 twenty floors of each (see floors.py), $6 the time.
with
-- Whoever takes over the jobs of a dead worker locks its row first, so no claim of its can come in later.
alive as materialized (
    select id, coalesce($6::bigint, holdfast.now()) as now
    from holdfast.workers
    where id = $1 and dead_at is null
    for key share
),
control as materialized (
    select
        coalesce(array_agg(name) filter (where paused_at is not null), '{}') as paused,
        coalesce(
            array_agg(name) filter (where waiting >= 0.9 * coalesce(override_bound, declared_bound)), '{}'
        ) as nearly_full,
        -- With a limit it is asked for each: the planner would rather read all of them, once.
        array(
            select name
            from unnest($3::text[]) as asked (name)
            where (select true from holdfast.lines where state = 1 and queue = asked.name limit 1)
        ) as lined,
        array(
            select name
            from unnest($3::text[]) as asked (name)
            where (select true from holdfast.wakes where queue = asked.name limit 1)
        ) as woken
    from holdfast.queues
    where name = any ($3::text[])
),
taken as (
    update holdfast.jobs as job
    set stage = 3, worker = $1, token = $2, started_at = (select now from alive),
        attempt = attempt + 1, runs = runs + 1
    -- An array, not a join: whatever the planner believes, it looks up these ids and no others.
    where job.id = any (array(
        select picked.id
        from alive
        cross join control
        cross join unnest($3::text[], $4::integer[]) with ordinality as demand (queue, slots, number)
        cross join lateral (
            select ready.id
            from unnest(($5::bigint[])[20 * number - 19 : 20 * number]) with ordinality as floor (place, number)
            cross join lateral (
                select id
                from holdfast.jobs
                where stage = 2 and line is null and queue = demand.queue
                  and priority = 9 - (floor.number - 1) / 2 and lane = (floor.number - 1) % 2
                  and place >= floor.place
                  and (expires_at is null or expires_at > alive.now)
                order by place
                limit demand.slots
                for update skip locked
            ) as ready
            limit demand.slots
        ) as picked
        where demand.queue <> all (control.paused || control.lined || control.woken)
    ))
    returning
        job.id, token, task, queue, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
        delivery, created_at, due_at, idempotency_key, unique_key is not null as has_unique_key, context, lane, place,
        generation
),
-- A claim that the disk forgets is made again. Only of a job that may not run twice it must not be forgotten.
durability as materialized (
    select set_config(
        'synchronous_commit',
        case when exists (select from taken where delivery = 1) then current_setting('synchronous_commit') else 'off' end,
        true
    )
)
select
    null::uuid, null::uuid, null::text, null::text, null::smallint, null::text, null::integer, null::integer,
    null::integer, null::integer, null::integer, null::integer, null::integer, null::smallint, null::bigint,
    null::bigint, null::text, null::boolean, null::text, null::smallint, null::bigint, null::bigint as seen_place,
    control.nearly_full,
    control.paused,
    control.lined,
    control.woken,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint as oldest_transaction,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next_transaction
from alive
cross join control
cross join durability
union all
select
    id, token, task, queue, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
    delivery, created_at, due_at, idempotency_key, has_unique_key, context, lane, place,
    -- Where the claim came upon it. By the time it was locked, others may have run it and given it back, and then its
    -- new place tells nothing about those before it. That can't be if it never ran.
    case
        when runs > 1 or generation > 0 then (select seen.place from holdfast.jobs as seen where seen.id = taken.id)
        else place
    end,
    null, null, null, null, null, null
from taken
