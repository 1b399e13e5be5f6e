-- One at a time declares breakers, so that nobody overwrites a new one that he has not seen. Answers with the time.
-- The first number is ours.
select coalesce($1::bigint, holdfast.now()) as now from (select pg_advisory_xact_lock(1215261795, 10)) as waited
