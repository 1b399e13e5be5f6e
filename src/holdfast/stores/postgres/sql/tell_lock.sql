-- These workers live, whatever has become of their lock. $1 ids, $2 whether they hold it, $3 the time.
update holdfast.workers
set is_locked = $2, beat = beat + 1, beat_at = coalesce($3::bigint, holdfast.now())
where id = any ($1::uuid[]) and dead_at is null
