-- ?1 the time, ?2 the jobs.
select json_group_array(json_array(seq, line))
from holdfast_jobs
where seq in (select value from json_each(?2)) and stage = 2 and (expires_at is null or expires_at > ?1)
