-- Those that are still closed and unused; answers with their gates. Nobody is waited for. $1 lines.
delete from holdfast.lines
where id = any (array(
    select id
    from holdfast.lines
    where id = any ($1::uuid[]) and (state = 0) is true
      and not exists (select from holdfast.jobs where queue = lines.queue and line = lines.id and stage = 2 offset 0)
      and not exists (select from holdfast.jobs where line = lines.id and stage in (1, 5, 6) offset 0)
      -- Few run, beside all that is there.
      and id <> all (array(select line from holdfast.jobs where stage = 3 and line is not null))
    order by id
    for update skip locked
))
returning id, queue, priority, gates, state, parked_at, turn, tenant
