-- A lock is a number of 64 bits; pg_locks shows it in two halves.
select
    w.id, w.beat, w.beat_at, holdfast.now() as now,
    case when w.is_locked then exists (
        select from pg_locks as l
        where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
          and l.database = (select oid from pg_database where datname = current_database())
          and (l.classid::bigint << 32 | l.objid::bigint) = holdfast.lock_of(w.id)
    ) end as is_locked
from holdfast.workers as w
where w.dead_at is null
