-- What an earlier claim under the same token took, since its answer was lost: the jobs, and the lines that they stand in.
select
    json_group_array(json_array(
        hex(id), hex(token), task, queue, priority, args, attempt, max_attempts, runs, crashes, waits, pool_tries, edits,
        case delivery when 0 then 'at_least_once' when 1 then 'at_most_once' else 'transactional' end,
        created_at, due_at, idempotency_key, json(iif(unique_key is null, 'false', 'true')), context,
        json(iif(line is null, 'false', 'true'))
    )),
    json_group_array(line)
from (
    select * from holdfast_jobs
    where stage = 3 and worker = ? and token = ?
    order by iif(line is null, -priority, 0), lane, place
)
