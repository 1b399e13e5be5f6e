-- The same question asked again of single jobs under their locks: somebody may have retried one meanwhile.
-- Answers with how many were deleted, and those of them that may have blocked a line.
with gone as (
    delete from holdfast.jobs as job
    where job.id = any (array(
        select id from holdfast.jobs
        where id = any ($1::uuid[])
          and (
              ((stage = 4) is true and finished_at < $2)
              or ((stage = 5) is true and finished_at < $3)
              or ((stage = 6) is true and finished_at < $4)
          )
          and not exists (
              select from holdfast.keys as k
              where k.job = jobs.id and (k.expires_at is null or k.expires_at > $5)
              offset 0 -- asked for each, never as a join
          )
        order by id
        for update skip locked
    ))
    returning job.id, job.line, job.stage
),
forgotten as (
    delete from holdfast.failures where job = any (array(select id from gone))
),
reported as (
    delete from holdfast.progress where job = any (array(select id from gone))
)
-- Of those that were dead, which stood in a line: one may have kept others from running.
select
    count(*),
    coalesce(array_agg(id) filter (where stage = 6 and line is not null), '{}'),
    coalesce(array_agg(line) filter (where stage = 6 and line is not null), '{}')
from gone
