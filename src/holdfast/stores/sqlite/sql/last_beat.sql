select beat_at, is_quiet from holdfast_workers where id = ? and dead_at is null
