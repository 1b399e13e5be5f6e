-- $1 ids, $2 their generations, in the order of ids, in which they are locked.
update holdfast.jobs
set is_unannounced = false
where id = any (array(
    select dead.id
    from unnest($1::uuid[], $2::integer[]) as told (id, generation)
    cross join lateral (
        select id
        from holdfast.jobs
        -- "is not false" hides the index of what is marked: it is small, but not when it matters.
        where id = any (array[told.id]) and generation = told.generation and is_unannounced is not false
        for update
    ) as dead
))
