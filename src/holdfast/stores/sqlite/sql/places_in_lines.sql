-- Of these jobs, those that stand in a line: their numbers, and their lines.
select json_group_array(json_array(seq, line))
from holdfast_jobs where id in (values /*rows*/(?)/*rows*/) and line is not null
