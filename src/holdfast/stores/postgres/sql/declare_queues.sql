-- $1 names, $2 bounds, $3 bounds of scheduled jobs.
insert into holdfast.queues (name, declared_bound, scheduled_bound)
select * from unnest($1::text[], $2::integer[], $3::integer[]) order by 1
on conflict (name) do update set
    declared_bound = excluded.declared_bound, scheduled_bound = excluded.scheduled_bound
where (queues.declared_bound, queues.scheduled_bound) <> (excluded.declared_bound, excluded.scheduled_bound)
