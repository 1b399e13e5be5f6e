-- Which breaker a scheduled job waits for, so that it need not wait any longer once that is closed.
--
-- The index is built in its transaction: no release has such jobs, so it begins empty, and is made in one look.
alter table holdfast.jobs add column breaker text;

create index jobs_behind_breakers on holdfast.jobs (breaker, due_at, id) where stage = 1 and breaker is not null;
