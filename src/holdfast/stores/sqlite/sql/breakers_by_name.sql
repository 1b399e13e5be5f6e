select json_group_array(json(record))
from (select record from holdfast_breakers where name in (/*rows*/?/*rows*/) order by name)
