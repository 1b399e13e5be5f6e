-- Lines that somebody has put jobs into, or made jobs ready in, each once: those that are there and that nobody else is
-- at, locked; which others are there; and what was told of lines, unless it is known already. If the disk forgets that
-- the wakes were taken, they are taken again. All of it in arrays, which cost least.
-- $1 queue, $2 how many wakes at the most, $3 of how many lines that have to be made: the last one may be of some more.
with
mine as materialized (
    select ctid as spot, seq, lines
    from holdfast.wakes
    where queue = $1
    order by seq
    limit $2
    for update skip locked
),
fresh as (
    select
        spot, seq,
        count(*) filter (
            where number = 1 and not exists (select from holdfast.lines where id = mentions.line offset 0)
        ) as lines
    from (
        select spot, seq, line, row_number() over (partition by line order by seq) as number
        from mine
        cross join lateral unnest(lines) as told (line)
    ) as mentions
    group by spot, seq
),
taken as (
    delete from holdfast.wakes
    where ctid = any (array(
        select spot from (select spot, lines, sum(lines) over (order by seq) as sum from fresh) as counted
        where sum - lines < $3
    ))
    returning seq, lines, priorities, rules
),
told as materialized (
    select distinct on (told.line) told.line, told.priority, told.rule
    from taken
    cross join lateral unnest(lines, priorities, rules) as told (line, priority, rule)
    order by told.line, told.rule is null, taken.seq desc
),
found as materialized (
    select told.line as woken, told.priority as told_priority, told.rule as told_rule, line.*
    from told
    left join lateral (
        select id, priority, gates, state, parked_at, turn, tenant, rule
        from holdfast.lines
        where id = any (array[told.line])
        for update skip locked
    ) as line on true
),
others as materialized (
    select
        woken, told_priority, told_rule,
        exists (select from holdfast.lines where id = any (array[found.woken]) offset 0) as is_there
    from found
    where id is null
)
select
    (select count(*) = $2 or count(*) > (select count(*) from taken) from mine) as has_more,
    array(select id from found where id is not null) as ids,
    array(select priority from found where id is not null) as priorities,
    array(select cardinality(gates) from found where id is not null) as sizes,
    array(select unnest(gates) from found where id is not null) as ways,
    array(select state from found where id is not null) as states,
    array(select parked_at from found where id is not null) as parked_at,
    array(select turn from found where id is not null) as turns,
    array(select tenant from found where id is not null) as tenants,
    array(
        select case when told_rule is distinct from rule or told_priority <> priority then told_rule end
        from found
        where id is not null
    ) as rules,
    array(select told_priority from found where id is not null) as told_priorities,
    array(select woken from others) as others,
    array(select is_there from others) as others_there,
    array(select told_priority from others) as others_priorities,
    array(select told_rule from others) as others_rules,
    set_config('synchronous_commit', 'off', true)
