-- Those of these schedules of which a tick's job is unfinished.
select name
from unnest($1::text[]) as asked (name)
where exists (
    select from holdfast.ticks as t
    where t.schedule = asked.name
      and (select j.stage < 4 from holdfast.jobs as j where j.id = t.job)
)
