-- Which breaker a scheduled job waits for, so that it need not wait any longer once that is closed.
alter table holdfast_jobs add column breaker text;

create index holdfast_behind_breakers on holdfast_jobs (breaker, due_at, id) where stage = 1 and breaker is not null;
