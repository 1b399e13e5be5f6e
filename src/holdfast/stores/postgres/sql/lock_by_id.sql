-- In the order of ids, as everybody does who waits for the locks of several jobs.
select * from holdfast.jobs where id = any ($1::uuid[]) order by id for update
