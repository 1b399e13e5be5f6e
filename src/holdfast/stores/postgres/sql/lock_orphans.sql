-- What dead workers still hold. $1 the workers, $2 how many at most.
select *
from holdfast.jobs
where stage = 3 and worker = any ($1::uuid[])
order by id
limit $2
for update
