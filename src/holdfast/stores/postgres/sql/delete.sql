-- Jobs with their history.
with gone as (
    delete from holdfast.jobs where id = any ($1::uuid[])
)
delete from holdfast.failures where job = any ($1::uuid[])
