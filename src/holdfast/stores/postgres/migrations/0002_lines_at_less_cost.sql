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

-- One wake for many lines: whoever puts a thousand jobs into as many lines adds twenty rows. `priorities` and `rules` are
-- there if the jobs have just come; each has as many as there are lines.
alter table holdfast.wakes add column lines uuid[], add column priorities smallint[], add column rules text[];
update holdfast.wakes set lines = array[line], priorities = array[priority], rules = array[rule];
alter table holdfast.wakes drop column line, drop column priority, drop column rule, alter column lines set not null;

-- Jobs have become ready in these lines, or there is room for some. Answers with their queues, each once.
create function holdfast.wake(queues text[], lines uuid[]) returns text[] language plpgsql as $$
declare
    woken text[];
begin
    with added as (
        insert into holdfast.wakes (queue, lines)
        select waking.queue, array_agg(waking.line)
        from unnest(queues, lines) with ordinality as waking (queue, line, number)
        group by waking.queue, waking.number / 100
        returning queue
    )
    select array_agg(distinct queue) into woken from added;
    return coalesce(woken, '{}');
end
$$;

-- These jobs, which ran in these lines, are completed: a limit has their places again, and an order has no holder. Lines
-- that are parked there are to be opened, as many as have left. Answers with their queues.
--
-- Gates are locked after the jobs, in the order of their ids. Which lines are parked is asked after that: until then,
-- others may still park lines there.
create or replace function holdfast.leave_gates(jobs uuid[], lines uuid[]) returns text[] language plpgsql as $$
declare
    left_gates uuid[];
    numbers    integer[];
    firsts     uuid[]; -- of the jobs that have left through each: mostly there is no other
    woken      text[];
begin
    select
        array_agg(leaving.gate order by leaving.gate),
        array_agg(leaving.number order by leaving.gate),
        array_agg(leaving.first order by leaving.gate)
    into left_gates, numbers, firsts
    from (
        select through.gate, count(*)::integer as number, (array_agg(mine.job))[1] as first
        from unnest(jobs, lines) as mine (job, line)
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
            holder = case
                when gate.holder = leaving.first or (leaving.number > 1 and gate.holder = any (jobs)) then null
                else gate.holder
            end
        from unnest(left_gates, numbers, firsts) as leaving (gate, number, first)
        where gate.id = any (array[leaving.gate]) and (gate.kind in (1, 3)) is true
        returning gate.id, leaving.number
    )
    select array_agg(id), array_agg(number) into left_gates, numbers from freed;
    select holdfast.wake(array_agg(line.queue), array_agg(line.id)) into woken
    from unnest(left_gates, numbers) as wanted (gate, number)
    cross join lateral (
        select queue, id
        from holdfast.lines
        where state = 2 and parked_at = wanted.gate
        order by priority desc, turn, id
        limit wanted.number
    ) as line;
    return woken;
end
$$;

-- Insert new jobs in the transaction that is open, all but those that are skipped, and answer how many there were. By
-- itself it is the short way for jobs that have no keys and new ids, in queues that are known to have room, on a
-- connection that was set up for it. `lines` are those that the jobs stand in, if any.
create or replace function holdfast.insert_jobs(
    listed json, moment bigint, is_skipped boolean[], lines json
) returns integer language plpgsql as $$
declare
    inserted integer;
begin
    perform pg_current_xact_id(); -- before any place is drawn
    insert into holdfast.jobs (
        id, place, created_at, due_at, expires_at, max_attempts, stage, priority, delivery,
        task, queue, args, idempotency_key, unique_key, line, tags, context
    )
    select
        new.id,
        nextval('holdfast.places'),
        moment,
        due.at,
        coalesce(due.at + new.expires_in, new.expires_at),
        coalesce(new.max_attempts, 5),
        case when due.at > moment then 1 else 2 end,
        coalesce(new.priority, 5),
        coalesce(new.delivery, 0),
        new.task,
        new.queue,
        new.args,
        new.idempotency_key,
        new.unique_key,
        new.line,
        new.tags,
        new.context
    from json_populate_recordset(null::holdfast.new_job, listed) with ordinality as new (
        id, task, queue, args, priority, max_attempts, delivery, delay, at, expires_in, expires_at,
        idempotency_key, fingerprint, unique_key, unique_window, line, tags, context, is_repeat, is_exempt, spot
    )
    cross join lateral (select greatest(coalesce(new.at, moment + coalesce(new.delay, 0)), moment)) as due (at)
    where is_skipped[new.spot] is not true
    on conflict (id) do nothing;
    get diagnostics inserted = row_count;
    if insert_jobs.lines is not null then
        insert into holdfast.wakes (queue, lines, priorities, rules)
        select woken.queue, woken.lines, woken.priorities, woken.rules
        from json_to_recordset(insert_jobs.lines) as woken (
            queue text, lines uuid[], priorities smallint[], rules text[]
        );
    end if;
    return inserted;
end
$$;
