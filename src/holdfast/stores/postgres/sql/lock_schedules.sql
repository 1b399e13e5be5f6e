-- In the order of names.
select record from holdfast.schedules where name = any ($1::text[]) order by name for update
