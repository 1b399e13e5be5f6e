-- Jobs have ended: an idempotency key (kind 1) lives on for its retention, a unique key until its window is over.
-- $1 ids, $2 the time, $3 the retention of idempotency keys.
update holdfast.keys
set expires_at = case kind when 1 then $2::bigint + $3::bigint else greatest($2::bigint, window_until) end
where expires_at is null and job = any ($1::uuid[])
