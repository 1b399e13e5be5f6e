-- Active jobs of workers that are not alive, so that a rescue that was cut short resumes.
select *
from holdfast.jobs as job
where stage = 3
  and not exists (select from holdfast.workers as w where w.id = job.worker and w.dead_at is null)
order by id
limit $1
for update
