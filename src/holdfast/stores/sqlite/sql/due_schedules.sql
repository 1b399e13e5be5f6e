select
    (
        select json_group_array(json(record))
        from (
            select record
            from holdfast_schedules
            where next_tick <= ?1 and (orphaned_at is null or orphaned_at > ?1)
            order by next_tick, name
            limit ?2
        )
    ),
    (select min(next_tick) from holdfast_schedules where next_tick is not null and (orphaned_at is null or orphaned_at > ?1))
