-- The first ready jobs of each line of a queue, whoever has locked them. $1 queue, $2 lines, $3 how many of each, $4 the
-- time.
select wanted.line, job.id
from unnest($2::uuid[], $3::integer[]) with ordinality as wanted (line, most, number)
cross join lateral (
    select id, lane, place
    from holdfast.jobs
    where queue = $1 and line = wanted.line and stage = 2 and (expires_at is null or expires_at > $4)
    order by lane, place
    limit wanted.most
) as job
order by wanted.number, job.lane, job.place
