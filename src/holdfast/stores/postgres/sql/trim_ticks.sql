delete from holdfast.ticks as t
using unnest($1::text[]) as trimmed (name)
where t.schedule = trimmed.name
  and t.tick < (
      select min(tick)
      from (select tick from holdfast.ticks where schedule = trimmed.name order by tick desc limit $2) as latest
  )
