-- A definition that has not changed keeps its revision.
insert into holdfast.tasks as task (name, definition, revision, published_at)
select name, definition, 1, coalesce($3::bigint, holdfast.now())
from unnest($1::text[], $2::text[]) as new (name, definition)
order by name
on conflict (name) do update set
    definition = excluded.definition, revision = task.revision + 1, published_at = excluded.published_at
where task.definition <> excluded.definition
