-- $1 how many.
select id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
from holdfast.gates
where lines = 0
limit $1
for update skip locked
