insert into holdfast.ticks (schedule, tick, job)
select * from unnest($1::text[], $2::bigint[], $3::uuid[])
on conflict (schedule, tick) do nothing
