-- Queues with ready jobs, by jumping from one to the next in the index, however many jobs they have.
with recursive busy (queue) as (
    select min(queue) from holdfast_jobs where stage = 2
    union all
    select (select min(job.queue) from holdfast_jobs as job where job.stage = 2 and job.queue > busy.queue)
    from busy
    where busy.queue is not null
)
select queue from busy where queue is not null
