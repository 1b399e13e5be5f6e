-- How many ready jobs beside lines are claimed before this one. ?1 queue, ?2 priority, ?3 lane, ?4 place, ?5 the time, ?6
-- how many are counted. Three ranges of the index, where one condition with "or" would look at the whole queue.
select count(*)
from (
    select 1 from holdfast_jobs
    where stage = 2 and line is null and queue = ?1 and priority > ?2 and (expires_at is null or expires_at > ?5)
    union all
    select 1 from holdfast_jobs
    where stage = 2 and line is null and queue = ?1 and priority = ?2 and lane < ?3
      and (expires_at is null or expires_at > ?5)
    union all
    select 1 from holdfast_jobs
    where stage = 2 and line is null and queue = ?1 and priority = ?2 and lane = ?3 and place < ?4
      and (expires_at is null or expires_at > ?5)
    limit ?6
)
