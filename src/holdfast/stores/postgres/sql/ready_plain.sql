-- Ready jobs of one queue that stand in no line, locked, by priority; with where they stand.
-- $1 queue, $2 how many, $3 the lanes to look at, $4 where to begin in each, $5 the time. See floors.py.
select ready.id, lane.number, ready.place
from unnest($3::integer[], $4::bigint[]) as lane (number, floor)
cross join lateral (
    select id, place
    from holdfast.jobs
    where stage = 2 and line is null and queue = $1
      and priority = 9 - lane.number / 2 and lane = lane.number % 2
      and place >= lane.floor
      and (expires_at is null or expires_at > $5)
    order by place
    limit $2
    for update skip locked
) as ready
limit $2
