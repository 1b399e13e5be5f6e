-- ── migration {title} ──

begin immediate;
{bookkeeping};
insert into holdfast_migrations (number, name) values ({number}, '{name}');

{sql}

commit;
