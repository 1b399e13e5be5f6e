-- $1 tasks, $2 kinds, $3 keys. The rows are locked, so that a key found free stays free.
select k.task, k.kind, k.key, k.job, k.fingerprint, k.window_until, k.expires_at
from unnest($1::text[], $2::smallint[], $3::text[]) as wanted (task, kind, key)
join holdfast.keys as k on k.task = wanted.task and k.kind = wanted.kind and k.key = wanted.key
order by k.task, k.kind, k.key
for update of k
