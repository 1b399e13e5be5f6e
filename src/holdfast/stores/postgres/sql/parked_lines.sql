-- At each gate, so many of those that are parked there. $1 gates, $2 how many of each.
select line.id, line.queue, line.priority, line.gates, line.state, line.parked_at, line.turn, line.tenant
from unnest($1::uuid[], $2::integer[]) as wanted (gate, most)
cross join lateral (
    select *
    from holdfast.lines
    where state = 2 and parked_at = wanted.gate
    order by priority desc, turn, id
    limit wanted.most
    for update skip locked
) as line
