select * from holdfast.jobs where stage = 3 and worker = $1 order by id for update
