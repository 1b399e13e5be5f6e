-- What has changed of lines and gates; and so many of those that are parked at gates are to be opened.
-- Of lines, $1 open ones and $2 turns; $3 parked ones, $4 turns, $5 where; $6 closed ones, $7 turns, $8 how many of their
-- ready jobs are known. Of gates, $9 limits and $10 how many places are taken; $11 orders, $12 who has them and $13 how
-- many are at work; $14 rates, $15 their logs, $16 when they have room; $17 tenants and $18 turns. $19 gates with room,
-- and $20 for how many lines of each queue; $21 the time; $22 queues that somebody claims from;
-- $23 a queue and $24 where turns have come to there, unless somebody else is just telling.
with
opened as (
    update holdfast.lines as line
    set state = 1, parked_at = null, turn = new.turn
    from unnest($1::uuid[], $2::bigint[]) as new (id, turn)
    where line.id = any (array[new.id])
),
parked as (
    update holdfast.lines as line
    set state = 2, parked_at = new.parked_at, turn = new.turn
    from unnest($3::uuid[], $4::bigint[], $5::uuid[]) as new (id, turn, parked_at)
    where line.id = any (array[new.id])
),
closed as (
    update holdfast.lines as line
    -- It is looked at once more: since its jobs were read, some may have come whose wake somebody has taken while it was
    -- still open.
    set state = case
            when (
                select count(*) > new.known
                from (
                    select
                    from holdfast.jobs as job
                    where job.queue = line.queue and job.line = new.id and job.stage = 2
                      and (job.expires_at is null or job.expires_at > $21)
                    order by job.lane, job.place
                    limit new.known + 1
                ) as ready
            ) then 1
            else 0
        end,
        parked_at = null, turn = new.turn
    from unnest($6::uuid[], $7::bigint[], $8::integer[]) as new (id, turn, known)
    where line.id = any (array[new.id])
),
limits as (
    update holdfast.gates as gate
    set held = new.held
    from unnest($9::uuid[], $10::integer[]) as new (id, held)
    where gate.id = any (array[new.id])
),
orders as (
    update holdfast.gates as gate
    set holder = new.holder, held = new.held
    from unnest($11::uuid[], $12::uuid[], $13::integer[]) as new (id, holder, held)
    where gate.id = any (array[new.id])
),
rates as (
    update holdfast.gates as gate
    set log = new.log, next_at = new.next_at
    from unnest($14::uuid[], $15::text[], $16::bigint[]) as new (id, log, next_at)
    where gate.id = any (array[new.id])
),
tenants as (
    update holdfast.gates as gate
    set turn = new.turn
    from unnest($17::uuid[], $18::bigint[]) as new (id, turn)
    where gate.id = any (array[new.id])
),
reached as (
    update holdfast.queues
    set turn = $24
    where name = any (
        array(select name from holdfast.queues where name = $23::text and turn < $24::bigint for update skip locked)
    )
),
room as materialized (
    -- Those that have just been at it are left out.
    select holdfast.make_room($19::uuid[], $20::integer[], $22::text[], $1::uuid[] || $3::uuid[] || $6::uuid[]) as queues
)
select queues from room
