-- What has become due gets its place in the line, in the order of its time. Answers with the queues, and how many.
-- $1 the time, $2 how many at most.
with ripe as materialized (
    select due.id, nextval('holdfast.places') as place
    from (
        select id
        from holdfast.jobs
        -- A question of its own, so that the answer is a place in the index: else all that is scheduled would be read.
        where stage = 1 and due_at <= (select coalesce($1::bigint, holdfast.now()))
        order by due_at, id
        limit $2
        for update skip locked
    ) as due
),
ripened as (
    update holdfast.jobs as job
    set stage = 2, lane = 1, place = ripe.place, breaker = null
    from ripe
    where job.id = any (array[ripe.id])
    returning job.queue, job.line
),
woken as materialized (
    select holdfast.wake(array_agg(queue), array_agg(line)) as queues
    from (select distinct queue, line from ripened where line is not null) as lined
)
select queue, count(*) as number from ripened cross join woken group by queue
