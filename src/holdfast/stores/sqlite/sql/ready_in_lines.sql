-- The ready jobs of each line, the next one first, at most so many of each. ?1 the time, ?2 how many.
with given (now, most) as (select ?1, ?2)
select json_group_array(json_array(hex(line), hex(id)))
from (
    select job.line, job.id
    from (values /*rows*/(?)/*rows*/) as wanted
    cross join holdfast_jobs as job on job.seq in (
        select seq from holdfast_jobs
        where line = wanted.column1 and stage = 2 and (expires_at is null or expires_at > ?1)
        order by lane, place limit ?2
    )
    order by job.line, job.lane, job.place
)
