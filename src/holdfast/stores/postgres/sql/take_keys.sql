-- $1 the keys, $2 the time. Answers with a row for each; one that somebody else has taken meanwhile is left alone.
insert into holdfast.keys as k (task, kind, key, job, fingerprint, window_until, expires_at)
select task, kind, key, job, fingerprint, window_until, expires_at
from json_to_recordset($1::text::json) as new (
    task text, kind smallint, key text, job uuid, fingerprint bytea, window_until bigint, expires_at bigint
)
order by task, kind, key
on conflict (task, kind, key) do update set
    job = excluded.job,
    fingerprint = excluded.fingerprint,
    window_until = excluded.window_until,
    expires_at = excluded.expires_at
where k.job = excluded.job or k.expires_at <= $2
returning 1
