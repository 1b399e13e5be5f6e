select json_group_array(json(record)) from (select record from holdfast_breakers order by name)
