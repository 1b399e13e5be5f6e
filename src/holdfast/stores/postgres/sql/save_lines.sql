-- $1 ids, $2 states, $3 gates where they are parked, $4 turns.
update holdfast.lines as line
set state = new.state, parked_at = new.parked_at, turn = new.turn
from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::bigint[]) as new (id, state, parked_at, turn)
where line.id = any (array[new.id])
