-- Queues with ready jobs, by jumping from one to the next in the index, however many jobs they have, and those with open
-- lines.
with recursive busy (queue) as (
    select min(queue) from holdfast_jobs where stage = 2 and line is null
    union all
    select (
        select min(job.queue) from holdfast_jobs as job where job.stage = 2 and line is null and job.queue > busy.queue
    )
    from busy
    where busy.queue is not null
)
select queue from busy where queue is not null
union
select queue from holdfast_lines where state = 1
