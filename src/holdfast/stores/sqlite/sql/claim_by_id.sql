-- What a claim takes from lines: the jobs, and their row numbers for start.sql.
-- ?1 the token.
with given (token) as (select ?1)
select
    json_group_array(json_array(
        hex(id), ?1, task, queue, priority, args, attempt + 1, max_attempts, runs + 1, crashes, waits, pool_tries, edits,
        case delivery when 0 then 'at_least_once' when 1 then 'at_most_once' else 'transactional' end,
        created_at, due_at, idempotency_key, json(iif(unique_key is null, 'false', 'true')), context,
        json('true')
    )),
    json_group_array(seq)
from (values /*rows*/(?)/*rows*/) as wanted
cross join holdfast_jobs on id = wanted.column1
