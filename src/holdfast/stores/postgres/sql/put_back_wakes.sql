-- Lines that could not be had, with all that was told of them: it may be what they are made from, if they are
-- forgotten meanwhile. $1 queue, $2 lines, $3 priorities and $4 rules, or null where nothing new was told.
insert into holdfast.wakes (queue, lines, priorities, rules)
select $1, array_agg(line), array_agg(priority), array_agg(rule)
from unnest($2::uuid[], $3::smallint[], $4::text[]) with ordinality as told (line, priority, rule, number)
group by number / 50
