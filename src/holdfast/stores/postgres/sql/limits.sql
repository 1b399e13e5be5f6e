-- Gates, those that jobs wait for first, how many wait, and the time. $1 name, $2 kind, $3 key, $4 how many gates, $5 how
-- many jobs are counted for each, $6 the time.
select
    id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines,
    waiting.number as waiting, moment.now as moment
from (select coalesce($6::bigint, holdfast.now()) as now) as moment
cross join lateral (
    select *, exists (select from holdfast.lines where state = 2 and parked_at = gate.id) as is_awaited
    from holdfast.gates as gate
    where ($1::text is null or name = $1) and ($2::smallint is null or kind = $2) and ($3::text is null or key = $3)
    order by is_awaited desc, name collate "C", kind, key collate "C"
    limit $4
) as gate
cross join lateral (
    select count(*) as number
    from (
        select
        from holdfast.lines as line
        cross join lateral (
            select
            from holdfast.jobs as job
            where job.line = line.id and job.stage = 2 and (job.expires_at is null or job.expires_at > moment.now)
            limit $5
        ) as held_up
        where line.state = 2 and line.parked_at = gate.id
        limit $5
    ) as counted
) as waiting
order by is_awaited desc, name collate "C", kind, key collate "C"
