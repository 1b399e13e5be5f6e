-- Where turns have come to in a queue, for when none of its lines is open.
alter table holdfast.queues add column turn bigint not null default 0;
