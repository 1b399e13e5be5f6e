-- What the role of this connection would need and lacks, of what has these names. Workers never change the list of
-- migrations, nor the instance. Whether a relation is a sequence must be known before it is asked about as one.
select 'usage of the schema' as lacking
where not has_schema_privilege('holdfast', 'usage')
union all
select needed.privilege || ' on ' || c.relname
from pg_class as c
cross join unnest(array['select', 'insert', 'update', 'delete']) as needed (privilege)
where c.relnamespace = 'holdfast'::regnamespace
  and c.relname = any ($1::text[])
  and (needed.privilege = 'select' or c.relname <> all (array['migrations', 'instance']))
  and case when c.relkind = 'r' then not has_table_privilege(c.oid, needed.privilege) else false end
union all
select 'usage of ' || c.relname
from pg_class as c
where c.relnamespace = 'holdfast'::regnamespace
  and c.relname = any ($1::text[])
  and case when c.relkind = 'S' then not has_sequence_privilege(c.oid, 'usage') else false end
union all
select 'execute of ' || p.proname
from pg_proc as p
where p.pronamespace = 'holdfast'::regnamespace
  and p.proname = any ($1::text[])
  and not has_function_privilege(p.oid, 'execute')
