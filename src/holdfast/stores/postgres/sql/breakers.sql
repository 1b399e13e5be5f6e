-- Those of these names, or all of them; and the time.
select coalesce($2::bigint, holdfast.now()) as now, record
from holdfast.breakers
where $1::text[] is null or name = any ($1)
order by name collate "C"
