select id, coalesce(cancel_reason, '')
from holdfast.jobs
where id = any ($1::uuid[]) and cancel_requested_at is not null and (stage = 3) is true
