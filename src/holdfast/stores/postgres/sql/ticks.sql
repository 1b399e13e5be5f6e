select t.tick, t.job, j.stage, j.attempt
from (select tick, job from holdfast.ticks where schedule = $1 order by tick desc limit $2) as t
left join lateral (select stage, attempt from holdfast.jobs where id = t.job) as j on true
order by t.tick desc
