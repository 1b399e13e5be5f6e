-- In the order of ids, as everybody does who waits for several gates.
select id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
from holdfast.gates
where id = any ($1::uuid[])
order by id
for update
