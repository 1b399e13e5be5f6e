select 1
from holdfast_ticks as t
join holdfast_jobs as j on j.id = t.job
where t.schedule = ? and j.stage < 4
limit 1
