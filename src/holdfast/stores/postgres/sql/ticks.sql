select
    t.tick, t.job,
    (select stage from holdfast.jobs where id = t.job) as stage,
    (select attempt from holdfast.jobs where id = t.job) as attempt
from (select tick, job from holdfast.ticks where schedule = $1 order by tick desc limit $2) as t
order by t.tick desc
