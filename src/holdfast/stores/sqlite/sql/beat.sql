update holdfast_workers set beat = beat + 1, beat_at = ?2 where id = ?1 and dead_at is null
