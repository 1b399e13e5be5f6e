-- A job, and all that decides about it: one statement, so that all of it is as of one moment. {job} is the job itself, by
-- $1, as records.sql has it. $2 the time, $3 how many jobs and lines before it are counted.
with
job as materialized (
    {job}
),
moment as materialized (
    select coalesce($2::bigint, now) as now from job
),
line as materialized (
    select * from holdfast.lines where id = (select line from job)
),
gate as materialized (
    select
        id, kind, name, key, declared, override, per, is_blocking, held,
        case
            when holder is null and kind = 3 and held > 0 then (
                select job.id
                from holdfast.jobs as job
                where job.stage = 3 and job.line = (select line.id from line)
                order by job.lane, job.place
                limit 1
            )
            else holder
        end as holder,
        log, next_at, turn, lines
    from holdfast.gates
    where id = any (array(select unnest(gates) from line))
)
select
    job.*,
    moment.now as moment,
    (select paused_at from holdfast.queues where name = job.queue) as paused_at,
    -- Ranges of the indexes, where one condition with "or" would look at the whole queue; and what is ordered as an index
    -- is, where another index would have to be read from end to end.
    (
        select count(*)
        from (
            select from holdfast.jobs as other
            where other.stage = 2 and other.line is null and job.stage = 2 and job.line is null
              and other.queue = job.queue and other.priority > job.priority
              and (other.expires_at is null or other.expires_at > moment.now)
            union all
            select from holdfast.jobs as other
            where other.stage = 2 and other.line is null and job.stage = 2 and job.line is null
              and other.queue = job.queue and other.priority = job.priority and other.lane < job.lane
              and (other.expires_at is null or other.expires_at > moment.now)
            union all
            select from holdfast.jobs as other
            where other.stage = 2 and other.line is null and job.stage = 2 and job.line is null
              and other.queue = job.queue and other.priority = job.priority and other.lane = job.lane
              and other.place < job.place
              and (other.expires_at is null or other.expires_at > moment.now)
            union all
            (
                select from holdfast.jobs as other
                where other.stage = 2 and other.queue = job.queue and other.line = job.line and job.stage = 2
                  and (other.lane, other.place) < (job.lane, job.place)
                  and (other.expires_at is null or other.expires_at > moment.now)
                order by other.lane, other.place
                limit $3
            )
            limit $3
        ) as ahead
    ) as ahead,
    (
        select count(*)
        from (
            select other.id from holdfast.lines as other
            where other.state = 1 and job.stage = 2 and other.queue = job.queue
              and other.priority > coalesce(line.priority, job.priority)
            union all
            select other.id from holdfast.lines as other
            where other.state = 1 and job.stage = 2 and other.queue = job.queue and other.priority = line.priority
              and (other.turn, other.id) < (line.turn, line.id)
            limit $3
        ) as ahead
        cross join lateral (
            select from holdfast.jobs as other
            where other.queue = job.queue and other.line = ahead.id and other.stage = 2
              and (other.expires_at is null or other.expires_at > moment.now)
            order by other.lane, other.place
            limit 1
        ) as ready
    ) as lines_ahead,
    case when line.id is not null then json_build_array(
        line.id, line.queue, line.priority, line.gates, line.state, line.parked_at, line.turn, line.tenant
    ) end as its_line,
    (
        select json_agg(json_build_array(
            id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
        ))
        from gate
    ) as gates,
    (
        select json_agg(json_build_array(holder.id, holder.stage, holder.attempt))
        from holdfast.jobs as holder
        where holder.id = any (array(select gate.holder from gate))
    ) as holders,
    (
        select json_agg(json_build_array(
            w.id, w.name, w.host, w.pid, w.queues, w.started_at, w.beat_at, w.beat, w.dead_at,
            (select count(*) from holdfast.jobs as held where held.stage = 3 and held.worker = w.id), w.is_quiet, w.tasks
        ))
        from holdfast.workers as w
        where w.dead_at is null or w.id = job.worker
    ) as workers,
    (
        select json_build_array(t.definition, t.revision, t.published_at)
        from holdfast.tasks as t
        where t.name = job.task or job.task in (
            select json_array_elements_text(coalesce(t.definition::json -> 'aliases', '[]'))
        )
        order by t.name <> job.task
        limit 1
    ) as published,
    progress.done, progress.total, progress.note, progress.at
from job
cross join moment
left join line on true
left join holdfast.progress on progress.job = job.id and progress.run = job.runs
