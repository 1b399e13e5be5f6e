-- A claim from a queue with lines begins: the time, whether the queue is paused, at which priorities it has open lines,
-- and ready jobs that stand in none, locked, with their priorities. Nothing if the worker is not alive, whose row is
-- locked as in claim.sql. $1 worker, $2 queue, $3 the time, $4 how many, $5 twenty floors (see floors.py).
with recursive
alive as materialized (
    select
        coalesce($3::bigint, holdfast.now()) as now,
        (select paused_at is not null from holdfast.queues where name = $2) is true as is_paused
    from holdfast.workers
    where id = $1 and dead_at is null
    for key share
),
open (priority) as (
    (select priority from holdfast.lines where state = 1 and queue = $2 order by priority desc limit 1)
    union all
    select (
        select line.priority
        from holdfast.lines as line
        where line.state = 1 and line.queue = $2 and line.priority < open.priority
        order by line.priority desc
        limit 1
    )
    from open
    where open.priority is not null
),
plain as materialized (
    select ready.id, (9 - (floor.number - 1) / 2)::integer as priority
    from alive
    cross join unnest($5::bigint[]) with ordinality as floor (place, number)
    cross join lateral (
        select id
        from holdfast.jobs
        where stage = 2 and line is null and queue = $2
          and priority = 9 - (floor.number - 1) / 2 and lane = (floor.number - 1) % 2
          and place >= floor.place
          and (expires_at is null or expires_at > alive.now)
        order by place
        limit $4
        for update skip locked
    ) as ready
    where not alive.is_paused
    limit $4
)
select
    now,
    is_paused,
    array(select priority from open where priority is not null) as open,
    array(select id from plain) as plain,
    array(select priority from plain) as priorities
from alive
