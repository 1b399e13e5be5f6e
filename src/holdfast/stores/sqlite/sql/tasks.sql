select json_group_array(json_array(definition, revision, published_at))
from (select * from holdfast_tasks order by name)
