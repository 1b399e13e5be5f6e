select name
from holdfast.queues
where name = any ($1::text[]) and waiting >= 0.9 * coalesce(override_bound, declared_bound)
