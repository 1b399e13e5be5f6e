with gone as (
    delete from holdfast.workers where dead_at is not null and is_empty and dead_at < $1 returning 1
)
select count(*) from gone
