select pg_notify(channel, payload) from unnest($1::text[], $2::text[]) as notice (channel, payload)
