-- $1 queues, $2 lines.
select holdfast.wake($1::text[], $2::uuid[])
