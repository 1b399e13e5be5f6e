select json_group_array(json(record)) from (select record from holdfast_schedules order by name)
