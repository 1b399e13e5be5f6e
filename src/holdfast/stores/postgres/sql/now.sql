-- $1 the time, if it is given.
select coalesce($1::bigint, holdfast.now())
