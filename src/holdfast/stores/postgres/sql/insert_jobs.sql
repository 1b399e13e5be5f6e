-- The short way of enqueuing, for jobs without keys whose ids are new, when there is room.
-- $1 the jobs, $2 the time, $3 the lines that they stand in, $4 what is to be said of them to those who wait for work.
-- Answers whether it was said. Whoever says it in here holds a lock on the whole cluster while he waits for the disk, so
-- one does at a time; a job that comes alone is heard of a round trip sooner. Where listeners have stopped to listen and
-- what is said to them piles up, no transaction may fail of that.
select
    holdfast.insert_jobs($1::json, coalesce($2::bigint, holdfast.now()), '{}', $3::json),
    case
        when $4::text is null or pg_notification_queue_usage() > 0.5 then false
        when pg_try_advisory_xact_lock(1215261796, 0) then pg_notify('holdfast_work', $4::text) is not null
        else false
    end as is_told
