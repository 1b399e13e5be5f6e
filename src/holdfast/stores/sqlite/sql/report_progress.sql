-- The fence: only the holder of a job's last claim tells how far it is.
insert into holdfast_progress (job, run, done, total, note, at)
select j.id, j.runs, new.column3, new.column4, new.column5, ?1
from (values /*rows*/(?, ?, ?, ?, ?)/*rows*/) as new
cross join holdfast_jobs as j on j.id = new.column1 and j.token = new.column2
where true -- or the parser takes what follows for the condition of a join
on conflict (job) do update set
    run = excluded.run, done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at
