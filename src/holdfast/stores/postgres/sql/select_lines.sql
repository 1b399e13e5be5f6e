select id, queue, priority, gates, state, parked_at, turn, tenant from holdfast.lines where id = any ($1::uuid[])
