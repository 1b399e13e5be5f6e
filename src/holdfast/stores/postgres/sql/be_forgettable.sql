-- What this transaction does is done again if the disk forgets it, so it need not be waited for.
select set_config('synchronous_commit', 'off', true)
