-- So that no claim of theirs is under way any more. In the order of ids.
select id from holdfast.workers where id = any ($1::uuid[]) order by id for update
