select * from holdfast_jobs where stage = 3 and worker = ?
