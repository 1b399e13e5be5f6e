select min(due_at) from holdfast_jobs where stage = 1
