with gone as (
    delete from holdfast.keys
    where ctid = any (array(
        select ctid from holdfast.keys
        where expires_at is not null and expires_at <= $1
        limit $2
        for update skip locked
    ))
    returning 1
)
select count(*) from gone
