-- Those of these lines in which no job stands that might run again; answers with their gates. $1 closed lines, locked.
delete from holdfast.lines
where id = any (array(
    select id
    from holdfast.lines
    where id = any ($1::uuid[]) and (state = 0) is true
      and not exists (select from holdfast.jobs where queue = lines.queue and line = lines.id and stage = 2 offset 0)
      and not exists (select from holdfast.jobs where line = lines.id and stage in (1, 5, 6) offset 0)
      -- Few run, beside all that is there.
      and id <> all (array(select line from holdfast.jobs where stage = 3 and line is not null))
))
returning id, queue, priority, gates, state, parked_at, turn, tenant
