-- In the order of names; and the time, once they are locked.
with locked as materialized (
    select name, record from holdfast.breakers where name = any ($1::text[]) order by name collate "C" for update
)
select coalesce($2::bigint, holdfast.now()) as now, record from locked order by name collate "C"
