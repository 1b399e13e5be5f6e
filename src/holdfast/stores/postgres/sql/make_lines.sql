-- Lines that are not there yet, in the order of ids. Answers with those that were made.
insert into holdfast.lines (id, queue, priority, gates, tenant, rule)
select id, queue, priority, gates, tenant, rule
from json_to_recordset($1::text::json) as new (
    id uuid, queue text, priority smallint, gates uuid[], tenant uuid, rule text
)
order by id
on conflict (id) do nothing
returning id
