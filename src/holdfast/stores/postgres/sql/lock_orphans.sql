-- What dead workers still hold. $1 the workers, $2 how many at most.
-- Found first, and then locked in the order of ids: an index that has that order would be read from end to end.
select *
from holdfast.jobs
where id = any (array(select id from holdfast.jobs where stage = 3 and worker = any ($1::uuid[])))
  and (stage = 3) is true and worker = any ($1::uuid[])
order by id
limit $2
for update
