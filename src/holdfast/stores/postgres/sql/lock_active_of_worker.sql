-- Found first, and then locked in the order of ids: an index that has that order would be read from end to end.
select *
from holdfast.jobs
where id = any (array(select id from holdfast.jobs where stage = 3 and worker = $1))
  and (stage = 3) is true and worker = $1
order by id
for update
