-- The short way of enqueuing, for jobs without keys whose ids are new, when there is room.
-- $1 the jobs, $2 the time, $3 the lines that they stand in.
select holdfast.insert_jobs($1::json, coalesce($2::bigint, holdfast.now()), '{}', $3::json)
