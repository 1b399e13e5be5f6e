select *
from holdfast.jobs
where stage < 3 and expires_at is not null and expires_at <= (select coalesce($1::bigint, holdfast.now()))
limit $2
for update skip locked
