-- The earliest time that somebody waits for, and the time.
select (select due_at from holdfast.jobs where stage = 1 order by due_at limit 1) as due_at, holdfast.now() as now
