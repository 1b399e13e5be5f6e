with forgotten as (delete from holdfast.ticks where schedule = $1)
delete from holdfast.schedules where name = $1
