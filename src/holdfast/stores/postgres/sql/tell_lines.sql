-- What the code says now of lines that are locked. $1 lines, $2 rules.
update holdfast.lines as line
set rule = new.rule
from unnest($1::uuid[], $2::text[]) as new (id, rule)
where line.id = any (array[new.id])
