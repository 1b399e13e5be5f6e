-- What a claim takes from lines, in the order to start in. ?1 the token, ?2 the jobs.
select json_group_array(json_array(
    hex(job.id), ?1, task, queue, priority, args, attempt + 1, max_attempts, runs + 1, crashes, waits, pool_tries, edits,
    case delivery when 0 then 'at_least_once' when 1 then 'at_most_once' else 'transactional' end,
    created_at, due_at, idempotency_key, json(iif(unique_key is null, 'false', 'true')), context,
    json('true')
))
from json_each(?2) as wanted
cross join holdfast_jobs as job on job.seq = wanted.value
