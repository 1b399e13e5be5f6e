-- Queues with jobs that can be claimed, by jumping from one to the next in each index, however many jobs they have.
with recursive plain (queue) as (
    (select queue from holdfast.jobs where stage = 2 and line is null and queue >= '' order by queue limit 1)
    union all
    select (
        select job.queue
        from holdfast.jobs as job
        where job.stage = 2 and job.line is null and job.queue > plain.queue
        order by job.queue
        limit 1
    )
    from plain
    where plain.queue is not null
),
lined (queue) as (
    (select queue from holdfast.lines where state = 1 and queue >= '' order by queue limit 1)
    union all
    select (
        select line.queue
        from holdfast.lines as line
        where line.state = 1 and line.queue > lined.queue
        order by line.queue
        limit 1
    )
    from lined
    where lined.queue is not null
),
woken (queue) as (
    (select queue from holdfast.wakes where queue >= '' order by queue limit 1)
    union all
    select (select wake.queue from holdfast.wakes as wake where wake.queue > woken.queue order by wake.queue limit 1)
    from woken
    where woken.queue is not null
)
select queue from plain where queue is not null
union
select queue from lined where queue is not null
union
select queue from woken where queue is not null
