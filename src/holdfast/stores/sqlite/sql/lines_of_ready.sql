-- ?1 the time.
with given (now) as (select ?1)
select json_group_array(json_array(hex(id), hex(line)))
from holdfast_jobs
where id in (values /*rows*/(?)/*rows*/) and stage = 2 and (expires_at is null or expires_at > ?1)
