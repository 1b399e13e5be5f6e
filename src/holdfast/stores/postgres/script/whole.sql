-- Migration {title}

begin;
set local lock_timeout = '{lock_timeout}';
set local search_path = pg_catalog, pg_temp;

do $$
begin
    perform pg_advisory_xact_lock({lock});
    if (select coalesce(max(number), 0) from holdfast.migrations) <> {previous} then
        raise exception 'Migration {number} comes after schema {previous}, but the schema is %.',
            (select coalesce(max(number), 0) from holdfast.migrations)
            using hint = 'Print what is missing: holdfast db sql --from N';
    end if;
end
$$;

{sql}

insert into holdfast.migrations (number, name) values ({number}, '{name}');
commit;
