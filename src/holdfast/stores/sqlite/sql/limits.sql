-- Gates, those that jobs wait for first, and how many wait. ?1 name, ?2 kind, ?3 key, ?4 how many gates, ?5 how many jobs
-- are counted for each, ?6 the time.
with
awaited (gate) as materialized (
    select distinct parked_at from holdfast_lines where state = 2
),
found as (
    select *
    from (
        select *, 1 as is_awaited from holdfast_gates
        where seq in (select gate from awaited)
          and (?1 is null or name = ?1) and (?2 is null or kind = ?2) and (?3 is null or key = ?3)
        order by name, kind, key limit ?4
    )
    union all
    -- By name, and all: one condition with "or" would look at all of them for either.
    select *
    from (
        select *, 0 as is_awaited from holdfast_gates
        where ?1 is not null and name = ?1 and (?2 is null or kind = ?2) and (?3 is null or key = ?3)
          and seq not in (select gate from awaited)
        order by name, kind, key limit ?4
    )
    union all
    select *
    from (
        select *, 0 as is_awaited from holdfast_gates
        where ?1 is null and (?2 is null or kind = ?2) and (?3 is null or key = ?3)
          and seq not in (select gate from awaited)
        order by name, kind, key limit ?4
    )
)
select json_group_array(json_array(
    hex(id), kind, name, key, declared, override, per, is_blocking, held,
    (select hex(job.id) from holdfast_jobs as job where job.seq = chosen.holder), json(log), next_at, turn, lines
)), json_group_array((
    select count(*)
    from (
        select 1
        from holdfast_lines as line
        cross join holdfast_jobs as job on job.line = +line.seq and job.stage = 2
        where line.state = 2 and line.parked_at = chosen.seq and (job.expires_at is null or job.expires_at > ?6)
        limit ?5
    )
))
from (select * from found order by is_awaited desc, name, kind, key limit ?4) as chosen
