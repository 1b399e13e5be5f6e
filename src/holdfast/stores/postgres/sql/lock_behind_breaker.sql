-- Jobs that wait for this breaker, those that were to go on first before the others. Whoever is locked is being dealt
-- with. As a range, so that only one index has them in this order: else all that is scheduled could be read.
select *
from holdfast.jobs
where stage = 1 and breaker is not null and breaker between $1 and $1
order by breaker, due_at, id
limit $2
for update skip locked
