-- Those of these names, or all of them.
select record
from holdfast.schedules
where $1::text[] is null or name = any ($1)
order by name collate "C"
