select min(next_at) from holdfast_gates where next_at is not null
