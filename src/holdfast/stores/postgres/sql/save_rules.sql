-- What gates let through, and how many lines lead through them.
-- $1 gates, $2 how many as the code says, $3 and as somebody has set it, $4 the windows, $5 whether dead jobs block, $6
-- how many lines.
update holdfast.gates as gate
set declared = new.declared, override = new.override, per = new.per, is_blocking = new.is_blocking, lines = new.lines
from unnest($1::uuid[], $2::integer[], $3::integer[], $4::bigint[], $5::boolean[], $6::integer[]) as new (
    id, declared, override, per, is_blocking, lines
)
where gate.id = any (array[new.id])
