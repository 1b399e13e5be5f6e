select beat_at from holdfast_workers where id = ? and dead_at is null
