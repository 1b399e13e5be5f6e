-- The lines of one queue and priority whose turn is next, their gates, and their ready jobs, all of them locked: no
-- line or job that somebody else is at, while gates are waited for, in the order of their ids. Lines are open, or are
-- ours already and about to be opened. All of it in arrays, which cost least.
-- $1 queue, $2 priority, $3 how many lines, $4 how many jobs are wanted, $5 how many of each line at most, $6 the time,
-- $7 lines that are to be opened, $8 with which turns, $9 how many jobs may come behind the first ones of all lines, if
-- these are expected to lead to orders, $10 the time, if it is given: it is told as of when the gates were locked.
with
opened as materialized (
    select id, gates, turn, tenant
    from holdfast.lines
    where state = 1 and queue = $1 and priority = $2
    order by turn, id
    limit $3
    for update skip locked
),
lines as materialized (
    select row_number() over (order by turn, id) as number, id, gates, turn, tenant
    from (
        select id, gates, turn, tenant from opened
        union all
        select woken.id, line.gates, woken.turn, null
        from unnest($7::uuid[], $8::bigint[]) as woken (id, turn)
        cross join lateral (select gates from holdfast.lines where id = any (array[woken.id])) as line
    ) as either
    order by turn, id
    limit $3
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
    select
        coalesce(
            1 + ceil($9::numeric / nullif(count(*), 0)),
            least($4, $5, 2 ^ ceil(log(2, greatest(ceil(2.0 * $4 / nullif(count(*), 0)), 1))))
        )::integer as most
    from lines
),
ready as materialized (
    select lines.number, job.id, row_number() over () as rank
    from (select count(*) from gates) as locked -- first of all
    cross join quota
    cross join lines
    cross join lateral (
        select id
        from holdfast.jobs
        where queue = $1 and line = lines.id and stage = 2 and (expires_at is null or expires_at > $6)
        order by lane, place
        limit quota.most
        for update skip locked
    ) as job
)
select
    array(select id from lines order by number) as lines,
    array(select turn from lines order by number) as turns,
    array(select tenant from lines order by number) as tenants,
    array(select cardinality(gates) from lines order by number) as sizes,
    array(
        select way.gate
        from lines
        cross join lateral unnest(gates) with ordinality as way (gate, number)
        order by lines.number, way.number
    ) as ways,
    gates.*,
    array(select number from ready order by rank) as numbers,
    array(select id from ready order by rank) as jobs,
    (select most from quota) as most,
    coalesce($10::bigint, holdfast.now()) as now,
    (
        select true
        from holdfast.lines
        where state = 1 and queue = $1 and priority = $2 and id <> all (array(select id from lines))
        order by turn, id
        limit 1
    ) is true as has_others
from (
    select
        array_agg(id) as ids, array_agg(kind) as kinds, array_agg(name) as names, array_agg(key) as keys,
        array_agg(declared) as declared, array_agg(override) as overrides, array_agg(per) as pers,
        array_agg(is_blocking) as blocking, array_agg(held) as held, array_agg(holder) as holders,
        array_agg(log) as logs, array_agg(next_at) as next_ats, array_agg(turn) as gate_turns,
        array_agg(lines) as gate_lines
    from gates
) as gates
