-- What a claim takes from one queue, in the order to start in: the jobs, and their row numbers for start.sql.
select
    json_group_array(json_array(
        hex(id), ?4, task, queue, priority, args, attempt + 1, max_attempts, runs + 1, crashes, waits, pool_tries, edits,
        case delivery when 0 then 'at_least_once' when 1 then 'at_most_once' else 'transactional' end,
        created_at, due_at, idempotency_key, json(iif(unique_key is null, 'false', 'true')), context
    )),
    json_group_array(seq)
from (
    select * from holdfast_jobs
    where stage = 2 and line is null and queue = ?1 and priority between ?5 and ?6
      and (expires_at is null or expires_at > ?2)
    order by priority desc, lane, place
    limit ?3
)
