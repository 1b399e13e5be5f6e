-- Of the next so many lines, those that are closed and in which no job stands that may still be claimed; and how far that
-- went. One that was ahead of the others is kept until they have caught up.
select
    max(seq),
    count(*),
    json_group_array(json_array(seq, queue, priority, json(gates), state, parked_at, turn, tenant)) filter (
        where state = 0
          and not exists (select 1 from holdfast_jobs where line = +each.seq and stage = 2)
          and not exists (select 1 from holdfast_jobs where line = +each.seq and stage in (1, 5, 6))
          and seq not in (select line from holdfast_jobs where stage = 3 and line is not null)
          and turn <= coalesce(
              (
                  select min(other.turn) from holdfast_lines as other
                  where other.state = 1 and other.queue = each.queue and other.priority = each.priority
              ),
              turn
          )
    )
from (select * from holdfast_lines where seq > ? order by seq limit ?) as each
