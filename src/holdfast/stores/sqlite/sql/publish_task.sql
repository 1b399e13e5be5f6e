-- A definition that has not changed keeps its revision.
insert into holdfast_tasks (name, definition, revision, published_at)
values (?1, ?2, 1, ?3)
on conflict (name) do update set
    definition = excluded.definition, revision = revision + 1, published_at = excluded.published_at
where definition <> excluded.definition
