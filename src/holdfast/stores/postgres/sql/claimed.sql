-- What an earlier claim under the same token took: its answer was lost. With the lines that lead to orders.
select
    id, token, task, queue, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
    delivery, created_at, due_at, idempotency_key, unique_key is not null as has_unique_key, context, lane, place,
    line is not null as is_lined,
    case
        when exists (
            select
            from holdfast.lines as way
            cross join unnest(way.gates) as through (gate)
            where way.id = any (array[job.line]) and exists (
                select from holdfast.gates where id = any (array[through.gate]) and (kind = 3) is true
            )
        ) then line
    end
from holdfast.jobs as job
where stage = 3 and worker = $1 and token = $2
