select id, coalesce(cancel_reason, '')
from holdfast_jobs
where id in (values /*rows*/(?)/*rows*/) and cancel_requested_at is not null and stage = 3
