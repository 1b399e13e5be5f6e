-- The ready jobs of each line, the next one first, locked. $1 lines, $2 how many of each, $3 the time.
select wanted.line, job.id
from unnest($1::uuid[], $2::integer[]) with ordinality as wanted (line, most, number)
cross join lateral (
    select id, lane, place
    from holdfast.jobs
    where line = wanted.line and stage = 2 and (expires_at is null or expires_at > $3)
    order by lane, place
    limit wanted.most
    for update skip locked
) as job
order by wanted.number, job.lane, job.place
