select json_group_array(json_array(hex(id), hex(line)))
from holdfast_jobs where id in (values /*rows*/(?)/*rows*/) and line is not null
