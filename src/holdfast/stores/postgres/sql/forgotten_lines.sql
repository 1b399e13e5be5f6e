-- Of the next so many lines, those that are closed, and in which no job stands that might run again: how far that went,
-- and which they are. $1 after which, $2 how many.
with looked_at as materialized (
    select id, queue, state from holdfast.lines where id > $1 order by id limit $2
)
select
    (select id from looked_at order by id desc offset $2 - 1 limit 1) as last,
    array(
        select id
        from looked_at
        where state = 0
          and not exists (
              select from holdfast.jobs where queue = looked_at.queue and line = looked_at.id and stage = 2 offset 0
          )
          and not exists (select from holdfast.jobs where line = looked_at.id and stage in (1, 5, 6) offset 0)
          -- Few run, beside all that is there.
          and id <> all (array(select line from holdfast.jobs where stage = 3 and line is not null))
    ) as ids
