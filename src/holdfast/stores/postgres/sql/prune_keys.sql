with gone as (
    delete from holdfast.keys
    where (task, kind, key) in (
        select task, kind, key from holdfast.keys
        where expires_at is not null and expires_at <= $1
        limit $2
        for update skip locked
    )
    returning 1
)
select count(*) from gone
