-- A window of the table in the order of ids, which is that of enqueuing: how far it goes, and what in it is past its
-- retention. A job stays as long as one of its keys, since it is the answer to a repeated request.
-- $1 where to begin, $2 where to end, $3 how many to look at, $4 $5 $6 the ends of retention, $7 the time.
with jobs as materialized (
    select id, stage, finished_at from holdfast.jobs where id > $1 and id < $2 order by id limit $3
)
select
    (select id from jobs order by id desc limit 1) as last,
    array(
        select id from jobs
        where ((stage = 4 and finished_at < $4) or (stage = 5 and finished_at < $5) or (stage = 6 and finished_at < $6))
          and not exists (
              select from holdfast.keys as k where k.job = jobs.id and (k.expires_at is null or k.expires_at > $7)
              offset 0 -- asked for each, never as a join
          )
        order by id
    ) as old
