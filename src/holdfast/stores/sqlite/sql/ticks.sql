select json_group_array(json_array(tick, lower(hex(job)), stage, attempt))
from (
    select t.tick, t.job, j.stage, j.attempt
    from holdfast_ticks as t
    left join holdfast_jobs as j on j.id = t.job
    where t.schedule = ?1
    order by t.tick desc
    limit ?2
)
