-- The same question about single jobs, asked again under the write lock: somebody may have retried one meanwhile.
select json_group_array(hex(id)) from holdfast_jobs
where ((stage = 4 and finished_at < ?1) or (stage = 5 and finished_at < ?2) or (stage = 6 and finished_at < ?3))
  and not exists (
      select 1 from holdfast_keys as k
      where k.job = holdfast_jobs.id and (k.expires_at is null or k.expires_at > ?4)
  )
  and id in (values /*rows*/(?)/*rows*/)
