-- What an earlier claim under the same token took, since its answer was lost: the jobs, and the lines that they stand
-- in if these lead to orders.
select
    json_group_array(json_array(
        hex(id), hex(token), task, queue, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
        case delivery when 0 then 'at_least_once' when 1 then 'at_most_once' else 'transactional' end,
        created_at, due_at, idempotency_key, json(iif(unique_key is null, 'false', 'true')), context,
        json(iif(line is null, 'false', 'true'))
    )),
    json_group_array(iif(
        exists (
            select 1
            from holdfast_lines as way
            cross join json_each(way.gates) as each
            cross join holdfast_gates as gate on gate.seq = each.value
            where way.seq = job.line and gate.kind = 3
        ),
        line, null
    ))
from (
    select * from holdfast_jobs
    where stage = 3 and worker = ? and token = ?
    order by iif(line is null, -priority, 0), lane, place
) as job
