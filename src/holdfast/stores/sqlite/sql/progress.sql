-- As rows, not as JSON, which would round the numbers.
select p.job, p.done, p.total, p.note, p.at
from holdfast_progress as p
cross join holdfast_jobs as j on j.id = p.job and j.runs = p.run
where p.job in (values /*rows*/(?)/*rows*/)
