select * from holdfast.jobs where is_unannounced order by finished_at, id limit $1
