-- For a connection of the caller's, whatever its search_path and its encoding: what goes in and what comes out is ASCII.
select pg_catalog.encode(pg_catalog.convert_to(holdfast.enqueue($1, $2), 'UTF8'), 'hex')
