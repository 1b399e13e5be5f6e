delete from holdfast_workers where dead_at is not null and dead_at < ?
