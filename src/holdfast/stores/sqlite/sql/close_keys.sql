-- Jobs have ended: an idempotency key (kind 1) lives on for its retention, a unique key until its window is over.
update holdfast_keys
set expires_at = case kind when 1 then ?1 else max(?2, coalesce(window_until, ?2)) end
where expires_at is null and job in (values /*rows*/(?)/*rows*/)
