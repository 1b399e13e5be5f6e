-- $1 the time, $2 how many.
with clock as materialized (select coalesce($1::bigint, holdfast.now()) as now)
select
    now,
    array(
        select record
        from holdfast.schedules
        where next_tick <= now and (orphaned_at is null or orphaned_at > now)
        order by next_tick, name
        limit $2
    ) as records,
    (
        select min(next_tick)
        from holdfast.schedules
        where next_tick is not null and (orphaned_at is null or orphaned_at > now)
    ) as next_tick
from clock
