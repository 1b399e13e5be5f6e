-- The last column says whether any of its lines is open.
select
    waiting, scheduled, last_place, declared_bound, override_bound, scheduled_bound, paused_at, turn,
    exists (select 1 from holdfast_lines where state = 1 and queue = ?1)
from (select ?1 as name) left join holdfast_queues using (name)
