-- Jobs with their history and their progress.
with gone as (
    delete from holdfast.jobs where id = any ($1::uuid[])
),
reported as (
    delete from holdfast.progress where job = any ($1::uuid[])
)
delete from holdfast.failures where job = any ($1::uuid[])
