-- The earliest time that somebody waits for, the earliest at which one expires who waits, the earliest at which a gate
-- opens, and the time.
select
    (select due_at from holdfast.jobs where stage = 1 order by due_at limit 1) as due_at,
    (
        select expires_at from holdfast.jobs where stage < 3 and expires_at is not null order by expires_at limit 1
    ) as expires_at,
    (select next_at from holdfast.gates where next_at is not null order by next_at limit 1) as opens_at,
    holdfast.now() as now
