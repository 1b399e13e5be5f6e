select * from holdfast_jobs where is_unannounced = 1 order by finished_at, id limit ?
