select waiting, scheduled, last_place, declared_bound, override_bound, scheduled_bound, paused_at
from holdfast_queues where name = ?
