-- $1 queues, $2 lines.
insert into holdfast.wakes (queue, line)
select queue, line from unnest($1::text[], $2::uuid[]) as woken (queue, line)
