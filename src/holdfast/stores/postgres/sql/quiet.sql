update holdfast.workers set is_quiet = true where id = $1 and dead_at is null returning id
