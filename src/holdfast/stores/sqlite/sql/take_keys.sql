insert into holdfast_keys (task, kind, key, job, fingerprint, window_until, expires_at)
values /*rows*/(?, ?, ?, ?, ?, ?, ?)/*rows*/
on conflict (task, kind, key) do update set
    job = excluded.job,
    fingerprint = excluded.fingerprint,
    window_until = excluded.window_until,
    expires_at = excluded.expires_at
