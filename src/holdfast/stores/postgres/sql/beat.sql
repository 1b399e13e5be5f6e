-- Its own row. Answers with the time, and whether it is to be quiet; no row if it is not alive. By itself, since nothing
-- may make a beat late.
-- $1 worker, $2 the time, $3 whether it holds its lock.
update holdfast.workers
set beat = beat + 1, beat_at = coalesce($2::bigint, holdfast.now()), is_locked = $3
where id = $1 and dead_at is null
returning beat_at, is_quiet, set_config('synchronous_commit', 'off', true)
