select id, kind, name, key, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines
from holdfast.gates
where id = any ($1::uuid[])
