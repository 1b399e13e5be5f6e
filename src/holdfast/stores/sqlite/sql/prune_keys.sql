delete from holdfast_keys
where (task, kind, key) in (
    select task, kind, key from holdfast_keys where expires_at is not null and expires_at <= ? limit ?
)
