-- Whether holdfast.enqueue is there; null if this role may not look. Asked first, because an error would end the
-- caller's transaction. Not asked of the catalogs, which show an older transaction what was there when it began.
select case
    when pg_catalog.has_schema_privilege(pg_catalog.to_regnamespace('holdfast'), 'usage') is not false
    then pg_catalog.to_regprocedure('holdfast.enqueue(pg_catalog.text, pg_catalog.text)') is not null
end
