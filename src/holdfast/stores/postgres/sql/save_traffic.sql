-- All that can change of lines and gates; and so many of those that are parked at gates are to be opened.
-- $1 lines, $2 states, $3 gates where they are parked, $4 turns; $5 gates and what they are like; $16 gates with room, and
-- $17 for how many; $18 the time, $19 jobs that are known.
with
saved_lines as (
    update holdfast.lines as line
    -- A line that is closed is looked at once more: since its jobs were read, some may have come whose wake somebody has
    -- taken while it was still open.
    set state = case
            when new.state = 0 and (
                select true from holdfast.jobs
                where queue = line.queue and line = new.id and stage = 2 and (expires_at is null or expires_at > $18) and id <> all ($19::uuid[])
                order by lane, place
                limit 1
            ) then 1
            else new.state
        end,
        parked_at = new.parked_at, turn = new.turn
    from unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::bigint[]) as new (id, state, parked_at, turn)
    where line.id = any (array[new.id])
),
saved_gates as (
    update holdfast.gates as gate
    set declared = new.declared, override = new.override, per = new.per, is_blocking = new.is_blocking,
        held = new.held, holder = new.holder, log = new.log, next_at = new.next_at, turn = new.turn, lines = new.lines
    from unnest(
        $5::uuid[], $6::integer[], $7::integer[], $8::bigint[], $9::boolean[], $10::integer[], $11::uuid[], $12::text[],
        $13::bigint[], $14::bigint[], $15::integer[]
    ) as new (id, declared, override, per, is_blocking, held, holder, log, next_at, turn, lines)
    where gate.id = any (array[new.id])
)
insert into holdfast.wakes (queue, line)
select line.queue, line.id
from unnest($16::uuid[], $17::integer[]) as wanted (gate, most)
cross join lateral (
    select queue, id
    from holdfast.lines
    where state = 2 and parked_at = wanted.gate
    order by priority desc, turn, id
    limit wanted.most
) as line
returning queue
