-- The fence: only the holder of a job's last claim tells how far it is. A report that the disk forgets is no loss.
-- $1 ids, $2 tokens, $3 done, $4 total, $5 notes, $6 the time.
insert into holdfast.progress (job, run, done, total, note, at)
select job.id, job.runs, new.done, new.total, new.note, coalesce($6::bigint, holdfast.now())
from unnest($1::uuid[], $2::uuid[], $3::double precision[], $4::double precision[], $5::text[])
    as new (id, token, done, total, note)
cross join lateral (
    select id, runs from holdfast.jobs where id = any (array[new.id]) and token = new.token offset 0
) as job
order by job.id
on conflict (job) do update set
    run = excluded.run, done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at
returning set_config('synchronous_commit', 'off', true)
