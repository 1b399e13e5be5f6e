-- Where turns have come to in a queue, for when none of its lines is open.
alter table holdfast_queues add column turn integer not null default 0;
