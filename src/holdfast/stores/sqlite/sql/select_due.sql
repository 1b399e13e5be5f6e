select * from holdfast_jobs where stage = 1 and due_at <= ? order by due_at, id limit ?
