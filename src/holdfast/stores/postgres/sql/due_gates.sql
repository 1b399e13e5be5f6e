-- Those whose time has come. $1 the time, $2 how many.
select id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
from holdfast.gates
where next_at <= (select coalesce($1::bigint, holdfast.now()))
order by next_at
limit $2
for update skip locked
