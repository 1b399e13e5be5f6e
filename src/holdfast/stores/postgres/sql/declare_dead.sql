-- Only if they have not beaten since they were judged; -1 judges whatever the beat.
-- $1 ids, $2 their beats, $3 the time.
update holdfast.workers as w
set dead_at = coalesce($3::bigint, holdfast.now())
from unnest($1::uuid[], $2::bigint[]) as gone (id, beat)
where w.id = gone.id and w.dead_at is null and gone.beat in (w.beat, -1)
