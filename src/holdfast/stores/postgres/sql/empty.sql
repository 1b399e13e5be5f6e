update holdfast.workers set is_empty = true where id = any ($1::uuid[])
