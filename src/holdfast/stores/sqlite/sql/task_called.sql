-- The task that has this name, or had it.
select json_group_array(json_array(definition, revision, published_at))
from holdfast_tasks
where name = ?1 or ?1 in (select value from json_each(definition, '$.aliases'))
