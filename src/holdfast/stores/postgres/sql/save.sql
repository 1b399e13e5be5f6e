-- Everything about a job that can change. A job that becomes ready draws its place here, after its row was locked, and
-- in the order given. One that goes dead is marked, for somebody to be told.
with new as materialized (
    select *, case when is_placed then nextval('holdfast.places') end as place
    from json_to_recordset($1::text::json) as new (
        id uuid, stage smallint, lane smallint, is_placed boolean, args text, attempt integer, runs integer,
        crashes integer, waits integer, pool_tries integer, generation integer, edits integer, due_at bigint,
        expires_at bigint, started_at bigint, finished_at bigint, worker uuid, token uuid, result text,
        error_type text, error_message text, cancel_requested_at bigint, cancel_reason text,
        breaker text
    )
)
update holdfast.jobs as job
set stage = new.stage, lane = new.lane, place = coalesce(new.place, job.place),
    args = new.args, attempt = new.attempt, runs = new.runs, crashes = new.crashes, waits = new.waits,
    pool_tries = new.pool_tries, generation = new.generation, edits = new.edits, due_at = new.due_at,
    expires_at = new.expires_at, started_at = new.started_at, finished_at = new.finished_at, worker = new.worker,
    token = new.token, result = new.result, error_type = new.error_type, error_message = new.error_message,
    cancel_requested_at = new.cancel_requested_at, cancel_reason = new.cancel_reason, breaker = new.breaker,
    is_unannounced = new.stage = 6 and (job.is_unannounced or job.stage <> 6)
from new
where job.id = any (array[new.id])
