-- The lowest turn of the open lines of each queue and priority. $1 queues, $2 priorities.
select place.queue, place.priority, line.turn
from unnest($1::text[], $2::smallint[]) as place (queue, priority)
cross join lateral (
    select turn
    from holdfast.lines
    where state = 1 and queue = place.queue and priority = place.priority
    order by turn
    limit 1
) as line
