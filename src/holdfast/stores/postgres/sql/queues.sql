-- Those that have a row, and those that jobs wait in, whoever put them there.
with counted as (
    select queue, sum(waiting)::bigint as waiting, sum(scheduled)::bigint as scheduled
    from (
        select queue, count(*) as waiting, 0 as scheduled from holdfast.jobs where stage = 2 and line is null group by queue
        union all
        select queue, count(*), 0 from holdfast.jobs where stage = 2 and line is not null group by queue
        union all
        select queue, count(*) filter (where attempt > 0), count(*) filter (where attempt = 0)
        from holdfast.jobs where stage = 1 group by queue
    ) as parts
    group by queue
)
select
    coalesce(q.name, counted.queue) as name, coalesce(counted.waiting, 0) as waiting,
    coalesce(counted.scheduled, 0) as scheduled, coalesce(q.declared_bound, 100000) as declared_bound,
    q.override_bound, coalesce(q.scheduled_bound, 100000) as scheduled_bound, q.paused_at
from holdfast.queues as q
full join counted on counted.queue = q.name
order by 1
