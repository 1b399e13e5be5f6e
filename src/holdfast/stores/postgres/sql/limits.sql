-- Gates, those that jobs wait for first, how many wait, and the time. $1 name, $2 kind, $3 key, $4 how many gates, $5 how
-- many jobs are counted for each, $6 the time.
with recursive
awaited (gate) as (
    (select parked_at from holdfast.lines where state = 2 order by parked_at limit 1)
    union all
    select (
        select line.parked_at
        from holdfast.lines as line
        where line.state = 2 and line.parked_at > awaited.gate
        order by line.parked_at
        limit 1
    )
    from awaited
    where awaited.gate is not null
),
moment as materialized (
    select coalesce($6::bigint, holdfast.now()) as now
),
found as materialized (
    (
        select *, true as is_awaited
        from holdfast.gates
        where id = any (array(select awaited.gate from awaited))
          and ($1::text is null or name = $1) and ($2::smallint is null or kind = $2) and ($3::text is null or key = $3)
        order by name collate "C", kind, key collate "C"
        limit $4
    )
    union all
    -- By name, and all: one condition with "or" would read the whole index for either.
    (
        select *, false as is_awaited
        from holdfast.gates as gate
        where $1 is not null and name collate "C" = $1 and ($2 is null or kind = $2) and ($3 is null or key = $3)
          and not exists (select from holdfast.lines where state = 2 and parked_at = gate.id)
        order by name collate "C", kind, key collate "C"
        limit $4
    )
    union all
    (
        select *, false as is_awaited
        from holdfast.gates as gate
        where $1 is null and name collate "C" >= '' and ($2 is null or kind = $2) and ($3 is null or key = $3)
          and not exists (select from holdfast.lines where state = 2 and parked_at = gate.id)
        order by name collate "C", kind, key collate "C"
        limit $4
    )
)
select
    id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines,
    waiting.number as waiting, moment.now as moment
from (select * from found order by is_awaited desc, name collate "C", kind, key collate "C" limit $4) as chosen
cross join moment
cross join lateral (
    select count(*) as number
    from (
        select
        from holdfast.lines as line
        cross join lateral (
            select
            from holdfast.jobs as job
            where job.queue = line.queue and job.line = line.id and job.stage = 2 and (job.expires_at is null or job.expires_at > moment.now)
            order by job.lane, job.place
            limit $5
        ) as held_up
        where line.state = 2 and line.parked_at = chosen.id
        limit $5
    ) as counted
) as waiting
order by is_awaited desc, name collate "C", kind, key collate "C"
