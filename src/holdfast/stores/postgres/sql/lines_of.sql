-- In which lines these jobs stand, if in any, and the time.
select id, line, holdfast.now() as now from holdfast.jobs where id = any ($1::uuid[]) and line is not null
