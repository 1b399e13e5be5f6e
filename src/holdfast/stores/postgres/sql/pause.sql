insert into holdfast.queues (name, paused_at) values ($1, coalesce($2::bigint, holdfast.now()))
on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at)
