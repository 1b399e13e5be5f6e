select 1 from holdfast_workers where id = ? and dead_at is null
