-- The fence: only the holder of the current claim completes a job.
-- $1 ids, $2 tokens, $3 results, $4 ids of those that have keys, $5 the time, $6 the retention of idempotency keys.
-- Answers with the ids of those that were completed, or with null if all of them were.
with
moment as materialized (
    select coalesce($5::bigint, holdfast.now()) as now
),
completed as (
    update holdfast.jobs as job
    set stage = 4, finished_at = (select now from moment), result = done.result, error_type = null, error_message = null
    from unnest($1::uuid[], $2::uuid[], $3::text[]) as done (id, token, result)
    -- "is true" hides the index of active jobs from the planner: it is small, but not when it matters. And an array
    -- makes it look up these ids: while the table is small, it would rather read all of it for a join, and keep to that.
    where job.id = any (array[done.id]) and job.token = done.token and (job.stage = 3) is true
    returning job.id
),
closed as (
    update holdfast.keys as k
    set expires_at = case kind
        when 1 then (select now from moment) + $6
        else greatest((select now from moment), window_until)
    end
    where k.job = any ($4::uuid[]) and k.expires_at is null and k.job in (select id from completed)
)
select case when count(*) < cardinality($1::uuid[]) then coalesce(array_agg(id), '{}') end, '{}'::text[] from completed
