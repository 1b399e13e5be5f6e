select * from holdfast_jobs where stage < 3 and expires_at is not null and expires_at <= ? limit ?
