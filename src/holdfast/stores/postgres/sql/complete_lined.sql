-- complete.sql for jobs of which some stand in lines: what they held there is free afterwards.
-- $1 ids, $2 tokens, $3 results, $4 ids of those that have keys, $5 the time, $6 the retention of idempotency keys.
-- Answers with the ids of those that were completed, or with null if all of them were; and with the queues that have work.
with
moment as materialized (
    select coalesce($5::bigint, holdfast.now()) as now
),
completed as (
    update holdfast.jobs as job
    set stage = 4, finished_at = (select now from moment), result = done.result, error_type = null, error_message = null
    from unnest($1::uuid[], $2::uuid[], $3::text[]) as done (id, token, result)
    -- As in complete.sql.
    where job.id = any (array[done.id]) and job.token = done.token and (job.stage = 3) is true
    returning job.id, job.line
),
closed as (
    update holdfast.keys as k
    set expires_at = case kind
        when 1 then (select now from moment) + $6
        else greatest((select now from moment), window_until)
    end
    where k.job = any ($4::uuid[]) and k.expires_at is null and k.job in (select id from completed)
)
select
    case when count(*) < cardinality($1::uuid[]) then coalesce(array_agg(id), '{}') end,
    holdfast.leave_gates(
        coalesce(array_agg(id) filter (where line is not null), '{}'),
        coalesce(array_agg(line) filter (where line is not null), '{}')
    )
from completed
