-- A definition that has not changed keeps its revision, and one of younger code stays.
insert into holdfast.tasks as task (name, definition, revision, published_at, code_from)
select name, definition, 1, moment, moment - coalesce($4::bigint, 0)
from unnest($1::text[], $2::text[]) as new (name, definition), coalesce($3::bigint, holdfast.now()) as moment
order by name
on conflict (name) do update set
    definition = excluded.definition,
    revision = task.revision + 1,
    published_at = excluded.published_at,
    code_from = excluded.code_from
where task.definition <> excluded.definition and ($4 is null or task.code_from <= excluded.code_from)
