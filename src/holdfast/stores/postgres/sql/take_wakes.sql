-- Lines that somebody has put jobs into, or made jobs ready in, locked in the order of ids, if they are there; no wakes
-- that another claimer is at. If the disk forgets that they were taken, they are taken again.
-- $1 queue, $2 how many.
with
taken as (
    delete from holdfast.wakes
    where ctid = any (array(
        select ctid from holdfast.wakes where queue = $1 order by seq limit $2 for update skip locked
    ))
    returning seq, line, priority, rule
),
lines as materialized (
    select id, queue, priority, gates, state, parked_at, turn, tenant
    from holdfast.lines
    where id = any (array(select distinct line from taken))
    order by id
    for update
)
select
    (select json_agg(json_build_array(line, priority, rule) order by seq) from taken)::text as wakes,
    coalesce(
        (select json_agg(json_build_array(id, queue, priority, gates, state, parked_at, turn, tenant)) from lines), '[]'
    )::text as lines,
    set_config('synchronous_commit', 'off', true)
