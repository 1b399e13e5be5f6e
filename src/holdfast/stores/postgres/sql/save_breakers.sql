insert into holdfast.breakers (name, record)
select * from unnest($1::text[], $2::text[]) as new (name, record) order by name
on conflict (name) do update set record = excluded.record
