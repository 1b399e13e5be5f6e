select p.job, p.done, p.total, p.note, p.at
from holdfast.progress as p
where p.job = any ($1::uuid[]) and p.run = (select runs from holdfast.jobs where id = p.job)
