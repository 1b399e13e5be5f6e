-- End the transactions that tasks of these workers have open: nobody waits for them any more, and what they have locked
-- would be held until somebody notices. $1 the workers.
select pg_terminate_backend(pid)
from pg_stat_activity
where datname = current_database() and usename = current_user
  and application_name = any (
      array(select 'holdfast work ' || id from holdfast.jobs where stage = 3 and worker = any ($1::uuid[]))
  )
