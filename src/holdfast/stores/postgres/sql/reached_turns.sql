-- Where turns have come to in these queues. $1 queues.
select name, turn from holdfast.queues where name = any ($1::text[])
