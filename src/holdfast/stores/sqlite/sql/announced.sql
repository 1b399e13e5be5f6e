update holdfast_jobs
set is_unannounced = 0
from (values /*rows*/(?, ?)/*rows*/) as told
where id = told.column1 and generation = told.column2
