-- Only if it has not beaten since it was judged; -1 judges whatever its beat.
update holdfast_workers set dead_at = ?3 where id = ?1 and dead_at is null and ?2 in (beat, -1)
