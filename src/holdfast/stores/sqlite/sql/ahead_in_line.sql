-- How many ready jobs of its line come before this one. ?1 the id of the line, ?2 lane, ?3 place, ?4 the time, ?5 how many are counted.
select count(*)
from (
    select 1 from holdfast_jobs
    where line = +(select seq from holdfast_lines where id = ?1) and stage = 2 and (lane, place) < (?2, ?3) and (expires_at is null or expires_at > ?4)
    limit ?5
)
