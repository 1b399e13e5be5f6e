insert into holdfast.queues (name) values ($1)
on conflict (name) do update set paused_at = null
