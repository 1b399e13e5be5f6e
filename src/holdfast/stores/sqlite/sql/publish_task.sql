-- A definition that has not changed keeps its revision, and one of younger code stays.
insert into holdfast_tasks (name, definition, revision, published_at, code_from)
values (?1, ?2, 1, ?3, ?3 - coalesce(?4, 0))
on conflict (name) do update set
    definition = excluded.definition,
    revision = revision + 1,
    published_at = excluded.published_at,
    code_from = excluded.code_from
where definition <> excluded.definition and (?4 is null or code_from <= excluded.code_from)
