-- Of the next so many lines, those that are closed, and in which no job stands that might run again: how far that went,
-- and which they are. $1 after which, $2 how many.
with looked_at as materialized (
    select id, state from holdfast.lines where id > $1 order by id limit $2
)
select
    (select id from looked_at order by id desc offset $2 - 1 limit 1) as last,
    array(
        select id
        from looked_at
        where state = 0
          and not exists (select from holdfast.jobs where line = looked_at.id and stage <> 4 offset 0)
    ) as ids
