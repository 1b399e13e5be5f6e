update holdfast_workers set is_quiet = 1 where id = ? and dead_at is null
