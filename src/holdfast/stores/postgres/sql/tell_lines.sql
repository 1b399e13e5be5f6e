-- What the code says now of lines that are locked, and at which priorities they go on. $1 lines, $2 rules, $3 priorities.
update holdfast.lines as line
set rule = new.rule, priority = new.priority
from unnest($1::uuid[], $2::text[], $3::smallint[]) as new (id, rule, priority)
where line.id = any (array[new.id])
