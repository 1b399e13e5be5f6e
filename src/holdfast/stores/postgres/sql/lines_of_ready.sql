-- In which lines those of these jobs stand that are ready, and whether they are ours: they are locked, but for those that
-- somebody else has locked. $1 jobs, $2 the time.
select
    job.id,
    job.line,
    job.id = any (
        array(
            select mine.id
            from holdfast.jobs as mine
            where mine.id = any ($1::uuid[]) and (mine.stage = 2) is true
              and (mine.expires_at is null or mine.expires_at > $2)
            order by mine.id
            for update skip locked
        )
    ) as is_ours
from holdfast.jobs as job
where job.id = any ($1::uuid[]) and (job.stage = 2) is true and (job.expires_at is null or job.expires_at > $2)
