-- Gates, made if they are not there yet, and locked in the order of ids.
insert into holdfast.gates (id, kind, name, key, declared, per, is_blocking)
select id, kind, name, key, declared, per, is_blocking
from unnest(
    $1::uuid[], $2::smallint[], $3::text[], $4::text[], $5::integer[], $6::bigint[], $7::boolean[]
) as new (id, kind, name, key, declared, per, is_blocking)
order by id
on conflict (id) do update set lines = gates.lines
returning id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
