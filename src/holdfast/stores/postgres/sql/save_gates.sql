-- All that can change of a gate.
update holdfast.gates as gate
set declared = new.declared, override = new.override, per = new.per, is_blocking = new.is_blocking, held = new.held,
    holder = new.holder, log = new.log, next_at = new.next_at, turn = new.turn, lines = new.lines
from unnest(
    $1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::boolean[], $6::integer[], $7::uuid[], $8::text[],
    $9::bigint[], $10::bigint[], $11::integer[]
) as new (id, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines)
where gate.id = any (array[new.id])
