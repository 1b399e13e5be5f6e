-- A claim begins: the time, and whether the queue is paused; nothing if the worker is not alive, whose row is locked as
-- in claim.sql. $1 worker, $2 queue, $3 the time.
select
    coalesce($3::bigint, holdfast.now()) as now,
    exists (select from holdfast.queues where name = $2 and paused_at is not null) as is_paused
from holdfast.workers
where id = $1 and dead_at is null
for key share
