-- How many lines of a queue with ready jobs have their turn before this one. ?1 queue, ?2 priority, ?3 turn and ?4 id of the
-- line, none for what is beside lines; ?5 the time, ?6 how many are counted.
select count(*)
from (
    select seq from holdfast_lines where state = 1 and queue = ?1 and priority > ?2
    union all
    select seq from holdfast_lines where state = 1 and queue = ?1 and priority = ?2
      and (turn, seq) < (?3, (select seq from holdfast_lines where id = ?4))
    limit ?6
) as line
where exists (
    select 1 from holdfast_jobs as job
    where job.line = +line.seq and job.stage = 2 and (job.expires_at is null or job.expires_at > ?5)
)
