-- Active jobs of workers that are not alive, so that a rescue that was cut short resumes.
select * from holdfast_jobs
where stage = 3 and worker not in (select id from holdfast_workers where dead_at is null)
limit ?
