-- $1 tasks, $2 kinds, $3 keys, in their order. The rows are locked, so that a key found free stays free.
select k.task, k.kind, k.key, k.job, k.fingerprint, k.window_until, k.expires_at
from unnest($1::text[], $2::smallint[], $3::text[]) as wanted (task, kind, key)
cross join lateral (
    select * from holdfast.keys where task = wanted.task and kind = wanted.kind and key = wanted.key for update
) as k
