-- The open lines of one queue and priority whose turn is next, their gates, and their ready jobs, all of them locked: no
-- line or job that somebody else is at, while gates are waited for, in the order of their ids.
-- $1 queue, $2 priority, $3 how many lines, $4 how many jobs are wanted, $5 the time.
with
lines as materialized (
    select id, queue, priority, gates, state, parked_at, turn, tenant
    from holdfast.lines
    where state = 1 and queue = $1 and priority = $2
    order by turn, id
    limit $3
    for update skip locked
),
gates as materialized (
    select id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
    from holdfast.gates
    where id = any (array(select distinct unnest(gates) from lines))
    order by id
    for update
),
-- Enough for twice the part of each line, as a power of two.
quota as materialized (
    select least($4, 2 ^ ceil(log(2, greatest(ceil(2.0 * $4 / nullif(count(*), 0)), 1))))::integer as most from lines
),
ready as materialized (
    select lines.id as line, job.id as job, job.lane, job.place
    from (select count(*) from gates) as locked -- first of all
    cross join quota
    cross join lines
    cross join lateral (
        select id, lane, place
        from holdfast.jobs
        where queue = $1 and line = lines.id and stage = 2 and (expires_at is null or expires_at > $5)
        order by lane, place
        limit quota.most
        for update skip locked
    ) as job
)
select json_build_object(
    'lines', coalesce(
        (
            select json_agg(
                json_build_array(id, queue, priority, gates, state, parked_at, turn, tenant) order by turn, id
            )
            from lines
        ),
        '[]'
    ),
    'gates', coalesce(
        (
            select json_agg(json_build_array(
                id, kind, name, key, declared, override, per, is_blocking, held, holder, log::json, next_at, turn, lines
            ))
            from gates
        ),
        '[]'
    ),
    'ready', coalesce(
        (select json_agg(json_build_array(line, job) order by line, lane, place) from ready), '[]'
    ),
    'most', (select most from quota),
    'has_others', (
        select true
        from holdfast.lines
        where state = 1 and queue = $1 and priority = $2 and id <> all (array(select id from lines))
        order by turn, id
        limit 1
    ) is true
)::text
