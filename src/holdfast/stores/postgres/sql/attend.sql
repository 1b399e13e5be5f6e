-- A claim from a queue with lines begins: the time, whether the queue is paused, at which priorities it has open lines
-- and whose turn it is there, where turns have come to in the queue, ready jobs that stand in none, locked, with their priorities; and lines that are not open
-- yet and that somebody has put jobs into or made jobs ready in. These are locked, and their wakes are taken, unless one
-- tells something new or they need a turn from their tenant: see take_wakes.sql. Nobody is waited for.
-- Nothing if the worker is not alive, whose row is locked as in claim.sql.
-- $1 worker, $2 queue, $3 the time, $4 how many, $5 twenty floors (see floors.py), $6 how many wakes.
with recursive
alive as materialized (
    select
        coalesce($3::bigint, holdfast.now()) as now,
        (select paused_at is not null from holdfast.queues where name = $2) is true as is_paused,
        coalesce((select turn from holdfast.queues where name = $2), 0) as reached
    from holdfast.workers
    where id = $1 and dead_at is null
    for key share
),
open (priority, turn) as (
    (select priority, turn from holdfast.lines where state = 1 and queue = $2 order by priority desc, turn limit 1)
    union all
    select next.priority, next.turn
    from open
    cross join lateral (
        select line.priority, line.turn
        from holdfast.lines as line
        where line.state = 1 and line.queue = $2 and line.priority < open.priority
        order by line.priority desc, line.turn
        limit 1
    ) as next
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
),
wakes as materialized (
    select wake.*
    from alive
    cross join lateral (
        select ctid as spot, seq, lines, priorities, rules
        from holdfast.wakes
        where queue = $2
        order by seq
        limit $6
        for update skip locked
    ) as wake
    where not alive.is_paused
),
taken as (
    delete from holdfast.wakes where ctid = any (array(select spot from wakes))
),
told as materialized (
    select distinct on (told.line) told.line, told.priority, told.rule
    from wakes
    cross join lateral unnest(lines, priorities, rules) as told (line, priority, rule)
    order by told.line, told.rule is null, wakes.seq desc
),
heard as materialized (
    select told.line as told_line, told.priority as told_priority, told.rule as told_rule, line.*
    from told
    left join lateral (
        select id, priority, gates, state, parked_at, turn
        from holdfast.lines
        where id = any (array[told.line]) and tenant is null and (told.rule is null or (rule = told.rule and priority = told.priority))
        for update skip locked
    ) as line on true
),
put_back as (
    insert into holdfast.wakes (queue, lines, priorities, rules)
    select $2, array_agg(told_line), array_agg(told_priority), array_agg(told_rule)
    from (select *, row_number() over () / 50 as part from heard where id is null) as left_over
    group by part
),
woken as materialized (
    select id, priority, gates, turn
    from heard
    -- What is parked at an order in which somebody is at work stays there: whoever leaves it wakes it again. Not so if
    -- others lead to it, too: for room there, a line may be woken only once, and this may be that wake.
    where state = 0 or (state = 2 and not exists (
        select from holdfast.gates where id = any (array[heard.parked_at]) and (kind = 3) is true and lines = 1 and held > 0
    ))
)
select
    now,
    is_paused,
    reached,
    array(select priority from open) as open,
    array(select turn from open) as turns,
    array(select id from plain) as plain,
    array(select priority from plain) as priorities,
    (select count(*) from wakes) as wakes,
    exists (select from heard where id is null) as is_left,
    array(select id from woken) as woken,
    array(select priority from woken) as woken_priorities,
    array(select turn from woken) as woken_turns,
    array(select cardinality(gates) from woken) as woken_sizes,
    array(select unnest(gates) from woken) as woken_gates
from alive
