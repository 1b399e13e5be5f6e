-- Queues with ready jobs, by jumping from one to the next in the index, however many jobs they have.
with recursive busy (queue) as (
    (select queue from holdfast.jobs where stage = 2 and queue >= '' order by queue limit 1)
    union all
    select (
        select job.queue from holdfast.jobs as job where job.stage = 2 and job.queue > busy.queue order by job.queue limit 1
    )
    from busy
    where busy.queue is not null
)
select queue from busy where queue is not null
