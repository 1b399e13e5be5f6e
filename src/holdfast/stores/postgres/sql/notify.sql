select pg_notify('holdfast', payload) from unnest($1::text[]) as payload
