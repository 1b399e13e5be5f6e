-- Of an order, several jobs may be claimed together: it is free again when all of them have left. `held` counts those at
-- work, as it does for a limit.
update holdfast_gates
set held = 1
where kind = 3 and exists (select 1 from holdfast_jobs as job where job.seq = holder and job.stage = 3);
