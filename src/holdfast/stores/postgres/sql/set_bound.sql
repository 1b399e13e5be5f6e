insert into holdfast.queues (name, override_bound) values ($1, $2)
on conflict (name) do update set override_bound = excluded.override_bound
