-- Gates, those that jobs wait for first, and how many wait. ?1 name, ?2 kind, ?3 key, ?4 how many gates, ?5 how many jobs
-- are counted for each, ?6 the time.
select json_group_array(json_array(
    hex(id), kind, name, key, declared, override, per, json(iif(is_blocking, 'true', 'false')), held, hex(holder),
    json(log), next_at, turn, lines
)), json_group_array((
    select count(*)
    from (
        select 1
        from holdfast_lines as line
        cross join holdfast_jobs as job on job.line = line.id and job.stage = 2
        where line.state = 2 and line.parked_at = gate.id and (job.expires_at is null or job.expires_at > ?6)
        limit ?5
    )
))
from (
    select * from holdfast_gates as each
    where (?1 is null or name = ?1) and (?2 is null or kind = ?2) and (?3 is null or key = ?3)
    order by exists (select 1 from holdfast_lines where state = 2 and parked_at = each.id) desc, name, kind, key
    limit ?4
) as gate
