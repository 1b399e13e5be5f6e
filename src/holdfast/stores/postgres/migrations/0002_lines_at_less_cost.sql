-- Lines at less cost: fewer entries in indexes for each job, and no look at a gate for each of the others.
--
-- Its indexes are built in its transaction, though others have to wait meanwhile: no release has lines without it, and
-- so there is nothing to build them from but what was tried out.

-- One index for the ready jobs in lines, by queue and line: of two, the planner took the one without lines for a small
-- table, and kept to it. Those that run are in none, so that a claim has one entry less to make.
create index jobs_ready_in_line on holdfast.jobs (queue, line, lane, place) where stage = 2 and line is not null;
create index jobs_kept_in_line on holdfast.jobs (line) where stage in (1, 5, 6) and line is not null;
drop index holdfast.jobs_in_line;
drop index holdfast.jobs_lined;

-- As its jobs were last told it. A wake that says the same tells nothing new.
alter table holdfast.lines add column rule text;

-- These jobs, which ran in these lines, are completed: a limit has their places again, and an order has no holder. Lines
-- that are parked there are to be opened, as many as have left. Answers with their queues.
--
-- Gates are locked after the jobs, in the order of their ids. Which lines are parked is asked after that: until then,
-- others may still park lines there.
create or replace function holdfast.leave_gates(jobs uuid[], lines uuid[]) returns text[] language plpgsql as $$
declare
    left_gates uuid[];
    numbers    integer[];
    woken      text[];
begin
    select array_agg(leaving.gate order by leaving.gate), array_agg(leaving.number order by leaving.gate)
    into left_gates, numbers
    from (
        select through.gate, count(*)::integer as number
        from unnest(lines) as mine (line)
        cross join lateral (
            select unnest(gates) as gate from holdfast.lines where id = any (array[mine.line])
        ) as through
        group by through.gate
    ) as leaving;
    -- "is true" hides the index of names from the planner, which has the kind too.
    perform from holdfast.gates where id = any (left_gates) and (kind in (1, 3)) is true order by id for update;
    if not found then
        return '{}';
    end if;
    with freed as (
        update holdfast.gates as gate
        set held = case when gate.kind = 1 then greatest(gate.held - leaving.number, 0) else gate.held end,
            holder = case when gate.holder = any (jobs) then null else gate.holder end
        from unnest(left_gates, numbers) as leaving (gate, number)
        where gate.id = any (array[leaving.gate]) and (gate.kind in (1, 3)) is true
        returning gate.id, leaving.number
    )
    select array_agg(id), array_agg(number) into left_gates, numbers from freed;
    with woken_lines as (
        insert into holdfast.wakes (queue, line)
        select line.queue, line.id
        from unnest(left_gates, numbers) as wanted (gate, number)
        cross join lateral (
            select queue, id
            from holdfast.lines
            where state = 2 and parked_at = wanted.gate
            order by priority desc, turn, id
            limit wanted.number
        ) as line
        returning queue
    )
    select array_agg(distinct queue) into woken from woken_lines;
    return coalesce(woken, '{}');
end
$$;
