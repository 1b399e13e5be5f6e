-- Migration {title}

do $$
begin
    if (select coalesce(max(number), 0) from holdfast.migrations) <> {previous} then
        raise exception 'Migration {number} comes after schema {previous}, but the schema is %.',
            (select coalesce(max(number), 0) from holdfast.migrations)
            using hint = 'Print what is missing: holdfast db sql --from N';
    end if;
end
$$;

{sql}

do $$
begin
    if exists (
        select
        from pg_index
        join pg_class on pg_class.oid = indexrelid
        where relnamespace = 'holdfast'::regnamespace and not indisvalid
    ) then
        raise exception 'An index in the schema holdfast was left unfinished.'
            using hint = 'Drop it, and run migration {number} again.';
    end if;
end
$$;

insert into holdfast.migrations (number, name) values ({number}, '{name}');
