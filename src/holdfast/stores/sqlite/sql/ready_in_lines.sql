-- The ready jobs of each line, the next one first, at most so many of each. ?1 the time, ?2 how many, ?3 the lines.
select json_group_array(json((
    select json_group_array(seq)
    from (
        select seq from holdfast_jobs
        where line = wanted.value and stage = 2 and (expires_at is null or expires_at > ?1)
        order by lane, place limit ?2
    )
)))
from json_each(?3) as wanted
