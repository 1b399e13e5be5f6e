delete from holdfast_schedules where name = ?
