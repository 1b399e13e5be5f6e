-- The line whose turn is next, whoever is at it. $1 queue, $2 priority.
select id from holdfast.lines where state = 1 and queue = $1 and priority = $2 order by turn, id limit 1
