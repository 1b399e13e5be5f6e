-- How many open lines of a queue have their turn before this one. ?1 queue, ?2 priority, ?3 turn and ?4 id of the line, none
-- for what is beside lines; ?5 how many are counted.
select count(*)
from (
    select 1 from holdfast_lines where state = 1 and queue = ?1 and priority > ?2
    union all
    select 1 from holdfast_lines where state = 1 and queue = ?1 and priority = ?2 and (turn, id) < (?3, ?4)
    limit ?5
)
