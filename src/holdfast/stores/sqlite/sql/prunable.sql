-- A window of the table in the order of enqueuing: how far it goes, and what in it is past its retention.
-- A job stays as long as one of its keys, since it is the answer to a repeated request.
with jobs as (
    select * from holdfast_jobs where seq > ?1 order by seq limit ?2
)
select
    (select max(seq) from jobs),
    (
        select json_group_array(json_array(seq, hex(id))) from jobs
        where ((stage = 4 and finished_at < ?3) or (stage = 5 and finished_at < ?4) or (stage = 6 and finished_at < ?5))
          and not exists (
              select 1 from holdfast_keys as k
              where k.job = jobs.id and (k.expires_at is null or k.expires_at > ?6)
          )
    )
