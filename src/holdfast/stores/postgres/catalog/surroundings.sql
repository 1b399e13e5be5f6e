-- What the server and this role's settings are like.
select
    current_setting('server_version') as version,
    current_setting('fsync') as fsync,
    current_setting('full_page_writes') as full_page_writes,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('server_encoding') as encoding,
    current_setting('default_transaction_read_only') as read_only,
    pg_is_in_recovery() as is_standby,
    current_user::text as role,
    quote_ident(current_user) as quoted_role,
    least(
        current_setting('max_connections')::integer
            - current_setting('superuser_reserved_connections')::integer
            - coalesce(current_setting('reserved_connections', true)::integer, 0),
        (select nullif(datconnlimit, -1) from pg_database where datname = current_database()),
        (select nullif(rolconnlimit, -1) from pg_roles where rolname = current_user)
    ) as most_connections,
    exists (select from pg_language where lanname = 'plpgsql') as has_plpgsql,
    exists (select from pg_namespace where nspname = 'holdfast') as has_schema
