-- Jobs, the keys that lead to them, what went wrong, and who works.
-- Times are microseconds since 1970 in UTC.
-- stage: 1 scheduled, 2 ready, 3 active, 4 completed, 5 cancelled, 6 dead.
-- lane: 0 given back, 1 fresh. delivery: 0 at least once, 1 at most once, 2 transactional.

-- Which database this is: an app refuses to enqueue in a transaction on another one.
create table holdfast.instance (
    id uuid not null default gen_random_uuid()
);
insert into holdfast.instance default values;

create function holdfast.now() returns bigint language sql volatile parallel safe as $$
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint
$$;

-- Drawn at every write that makes a job ready, after the transaction has got its number: a claimer that has seen all
-- transactions up to a number end knows that no smaller place can turn up any more.
create sequence holdfast.places;

create table holdfast.jobs (
    id                  uuid     primary key,
    place               bigint   not null,
    created_at          bigint   not null,
    due_at              bigint   not null,
    expires_at          bigint,
    started_at          bigint,
    finished_at         bigint,
    cancel_requested_at bigint,
    worker              uuid,
    token               uuid,
    max_attempts        integer  not null,
    attempt             integer  not null default 0,
    runs                integer  not null default 0,
    crashes             integer  not null default 0,
    waits               integer  not null default 0,
    pool_tries          integer  not null default 0,
    generation          integer  not null default 0,
    edits               integer  not null default 0,
    stage               smallint not null,
    priority            smallint not null,
    lane                smallint not null default 1,
    delivery            smallint not null,
    is_unannounced      boolean  not null default false, -- it is dead, and nobody has been told
    task                text     not null,
    queue               text     not null,
    args                text     not null,
    result              text,
    idempotency_key     text,
    unique_key          text,
    line                uuid,                            -- where it stands, if it is under limits
    tags                text[],
    context             text,
    error_type          text,
    error_message       text,
    cancel_reason       text
) with (
    -- Every job leaves two dead versions of its row behind. Sweep them up often and without pauses.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    -- To give room back to the disk, a vacuum locks everybody out, and a busy queue needs it again a moment later.
    vacuum_truncate = off
);

-- Arguments as JSON that can be looked into. JSON may hold the character 0 and PostgreSQL's texts may not, so here two
-- characters stand for it that have no meaning of their own.
create function holdfast.readable(args text) returns json language sql immutable parallel safe as $$
    select case
        when strpos(args, '\u0000') = 0 then args::json
        else regexp_replace(args, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ue000\\ue001', 'g')::json
    end
$$;

-- Only live states are indexed, so that a finished job costs nothing but its row and its id.
create index jobs_ready on holdfast.jobs (queue, priority desc, lane, place) where stage = 2 and line is null;
create index jobs_in_line on holdfast.jobs (line, stage, lane, place) where line is not null and stage <> 4;
create index jobs_lined on holdfast.jobs (queue) where stage = 2 and line is not null;
create index jobs_due on holdfast.jobs (due_at, id) where stage = 1;
create index jobs_delayed on holdfast.jobs (queue, attempt) where stage = 1;
create index jobs_active on holdfast.jobs (worker, started_at) where stage = 3;
create index jobs_dead on holdfast.jobs (id) where stage = 6;
create index jobs_unannounced on holdfast.jobs (finished_at, id) where is_unannounced;
create index jobs_expiring on holdfast.jobs (expires_at) where stage < 3 and expires_at is not null;

-- Jobs under limits stand in lines, see traffic.py. state: 0 closed, 1 open, 2 parked at one of its gates.
create table holdfast.lines (
    id        uuid     primary key,
    queue     text     not null,
    priority  smallint not null,
    gates     uuid[]   not null,
    state     smallint not null default 0,
    parked_at uuid,
    turn      bigint   not null default 0,
    tenant    uuid
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create index lines_open on holdfast.lines (queue, priority desc, turn, id) where state = 1;
create index lines_parked on holdfast.lines (parked_at, priority desc, turn, id) where state = 2;

-- kind: 1 limit, 2 rate, 3 order, 4 fair. log: when how many were claimed, as JSON.
create table holdfast.gates (
    id          uuid     primary key,
    kind        smallint not null,
    name        text     not null,
    key         text     not null,
    declared    integer  not null,
    override    integer,
    per         bigint   not null,
    is_blocking boolean  not null,
    held        integer  not null default 0,
    holder      uuid,
    log         text     not null default '[]',
    next_at     bigint,
    turn        bigint   not null default 0,
    lines       integer  not null default 0
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create index gates_timed on holdfast.gates (next_at) where next_at is not null;
create index gates_named on holdfast.gates (name collate "C", kind, key collate "C");
create index gates_unused on holdfast.gates (id) where lines = 0;

-- Jobs have become ready in these lines, or have come into them. Who makes jobs ready only adds rows here, and so
-- never waits for a line: whoever claims from the queue opens it. With its priority and its rule, the line is made if
-- there is none.
create table holdfast.wakes (
    seq      bigint   generated always as identity,
    queue    text     not null,
    line     uuid     not null,
    priority smallint,
    rule     text
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create index wakes_of_queue on holdfast.wakes (queue, seq);

-- These jobs, which ran in these lines, are completed: a limit has their places again, and an order has no holder. Lines
-- that are parked there are to be opened, as many as have left. Answers with their queues.
--
-- Gates are locked after the jobs, in the order of their ids. Which lines are parked is asked after that: until then,
-- others may still park lines there.
create function holdfast.leave_gates(jobs uuid[], lines uuid[]) returns text[] language plpgsql as $$
declare
    left_gates uuid[];
    numbers    integer[];
    woken      text[];
begin
    with leaving as materialized (
        select through.gate, count(*)::integer as number
        from unnest(lines) as mine (line)
        cross join lateral (
            select unnest(gates) as gate from holdfast.lines where id = any (array[mine.line])
        ) as through
        group by through.gate
    ),
    locked as materialized (
        select id
        from holdfast.gates
        where id = any (array(select gate from leaving)) and kind in (1, 3)
        order by id
        for update
    ),
    freed as (
        update holdfast.gates as gate
        set held = case when gate.kind = 1 then greatest(gate.held - leaving.number, 0) else gate.held end,
            holder = case when gate.holder = any (jobs) then null else gate.holder end
        from locked
        cross join lateral (select number from leaving where leaving.gate = locked.id) as leaving
        where gate.id = any (array[locked.id])
        returning gate.id, leaving.number
    )
    select array_agg(id), array_agg(number) into left_gates, numbers from freed;
    if left_gates is null then
        return '{}';
    end if;
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

create table holdfast.keys (
    task         text     not null,
    kind         smallint not null,
    key          text     not null,
    job          uuid     not null,
    fingerprint  bytea,
    window_until bigint,
    expires_at   bigint,
    primary key (task, kind, key)
);

create index keys_of_job on holdfast.keys (job);
create index keys_ending on holdfast.keys (expires_at) where expires_at is not null;

create table holdfast.failures (
    seq        bigint   generated always as identity primary key,
    job        uuid     not null,
    run        integer  not null,
    generation integer  not null,
    started_at bigint,
    ended_at   bigint   not null,
    worker     uuid,
    kind       text     not null,
    error_type text     not null,
    message    text     not null,
    traceback  text
);

create index failures_of_job on holdfast.failures (job);

-- The last report of each job that reports at all, and in which of its runs it was made. By itself, because it changes
-- often: a job's own row is in many indexes.
create table holdfast.progress (
    job   uuid             primary key,
    run   integer          not null,
    done  double precision not null,
    total double precision,
    note  text             not null,
    at    bigint           not null
) with (fillfactor = 50);

-- How many jobs waited at measured_at. That is counted now and then, not kept: a row that every producer changed
-- would make them wait for each other's commit.
create table holdfast.queues (
    name            text    primary key,
    waiting         bigint  not null default 0,
    scheduled       bigint  not null default 0,
    measured_at     bigint  not null default 0,
    measured_in     bigint  not null default 0,
    declared_bound  integer not null default 100000,
    override_bound  integer,
    scheduled_bound integer not null default 100000,
    paused_at       bigint
) with (fillfactor = 50);

create table holdfast.workers (
    id         uuid    primary key,
    name       text    not null,
    host       text    not null,
    pid        integer not null,
    queues     text[]  not null,
    started_at bigint  not null,
    beat_at    bigint  not null,
    beat       bigint  not null,
    dead_at    bigint,
    is_locked  boolean not null default false, -- it holds the session lock that lock_of tells
    is_empty   boolean not null default false, -- it is dead, and nothing of its is left to rescue
    is_quiet   boolean not null default false, -- it was asked to claim nothing more
    tasks      text[]  not null default '{}'   -- whose code it has; none if it does not say
) with (fillfactor = 50);

-- The session lock by which others see that a worker's process is there.
create function holdfast.lock_of(worker uuid) returns bigint language sql immutable parallel safe as $$
    select ('x' || right(replace(worker::text, '-', ''), 16))::bit(64)::bigint
$$;

create table holdfast.tasks (
    name         text    primary key,
    definition   text    not null,
    revision     integer not null,
    published_at bigint  not null,
    code_from    bigint  not null -- when the code was started that it comes from
);

-- How the circuit breakers stand. All of it is in the record, as JSON.
create table holdfast.breakers (
    name   text primary key,
    record text not null
) with (fillfactor = 50);

-- What is to be enqueued again and again, and where it stands: next_tick, unless nobody has declared it since
-- orphaned_at. All of it is in the record, as JSON.
create table holdfast.schedules (
    name        text   primary key,
    next_tick   bigint,
    orphaned_at bigint,
    record      text   not null
) with (fillfactor = 50);

create index schedules_due on holdfast.schedules (next_tick) where next_tick is not null;

-- The last ticks that made a job, one row for each.
create table holdfast.ticks (
    schedule text   not null,
    tick     bigint not null,
    job      uuid   not null,
    primary key (schedule, tick)
);

-- Enqueuing: one function that takes text, so that every driver and every language can call it.

create type holdfast.new_job as (
    id              uuid,
    task            text,
    queue           text,
    args            text,
    priority        smallint,
    max_attempts    integer,
    delivery        smallint,
    delay           bigint,
    at              bigint,
    expires_in      bigint,
    expires_at      bigint,
    idempotency_key text,
    fingerprint     bytea,
    unique_key      text,
    unique_window   bigint,
    line            uuid,    -- see the option lines
    tags            text[],
    context         text,
    is_repeat       boolean,
    is_exempt       boolean -- not refused by a bound
);

-- How many jobs wait in a queue and how many are scheduled; there is no need to count further than `most`.
create function holdfast.measure(
    queue_name text, most bigint, out waiting bigint, out scheduled bigint
) language sql volatile as $$
    select
        (
            select count(*)
            from (select from holdfast.jobs where stage = 2 and line is null and queue = queue_name limit most) as ready
        )
        + (
            select count(*)
            from (select from holdfast.jobs where stage = 2 and line is not null and queue = queue_name limit most) as lined
        )
        + (
            select count(*)
            from (select from holdfast.jobs where stage = 1 and queue = queue_name and attempt > 0 limit most) as retrying
        ),
        (
            select count(*)
            from (select from holdfast.jobs where stage = 1 and queue = queue_name and attempt = 0 limit most) as later
        )
$$;

-- How full a queue is, whether that was counted just now, and how long counting took.
--
-- Far below a large bound, what somebody counted a moment ago will do; the longer it takes, the longer it will do.
-- Otherwise it is counted, and if the caller may wait, under a lock: then nobody else passes the bound before this
-- transaction ends. A queue that takes long to count is not counted here at all, if it was far below its bound within the
-- last minute: `is_old` asks the caller to have it recounted.
create function holdfast.look_at_queue(
    queue_name text, more bigint, declared json, is_locking boolean, is_tight boolean,
    out waiting bigint, out scheduled bigint, out bound bigint, out scheduled_bound bigint, out is_certain boolean,
    out measured_at bigint, out measured_in bigint, out is_old boolean
) language plpgsql as $$
declare
    known       holdfast.queues;
    started     bigint := holdfast.now();
    fresh_for   bigint;
    is_counting boolean := false;
begin
    select * into known from holdfast.queues where name = queue_name;
    bound := coalesce(known.override_bound, (declared -> queue_name ->> 0)::bigint, known.declared_bound, 100000);
    scheduled_bound := coalesce((declared -> queue_name ->> 1)::bigint, known.scheduled_bound, 100000);
    waiting := known.waiting;
    scheduled := known.scheduled;
    measured_at := known.measured_at;
    measured_in := coalesce(known.measured_in, 0);
    is_certain := false;
    is_old := false;
    if not is_tight and least(bound, scheduled_bound) >= 10000 then
        fresh_for := greatest(250000, 20 * known.measured_in);
        is_old := is_locking and measured_in > 20000
            and known.measured_at + fresh_for < started and started < known.measured_at + 60000000
            and waiting + more <= 0.75 * bound and scheduled + more <= 0.75 * scheduled_bound;
        if not is_old and (known.measured_at is null or known.measured_at + fresh_for < started) then
            -- One of many counts. The others go by what is known until they see the result, but not for ever.
            is_counting := is_locking and pg_try_advisory_xact_lock(1215261794, hashtext(queue_name));
            if is_counting or not is_locking or known.measured_at is null or known.measured_at + 4 * fresh_for < started then
                select * into waiting, scheduled from holdfast.measure(queue_name, greatest(bound, scheduled_bound));
                measured_at := started;
                measured_in := holdfast.now() - started;
            end if;
        end if;
        if waiting + more <= 0.75 * bound and scheduled + more <= 0.75 * scheduled_bound then
            if is_counting then
                perform holdfast.publish_depth(queue_name, waiting, scheduled, measured_in);
            end if;
            return;
        end if;
    end if;
    if is_locking then
        perform pg_advisory_xact_lock(1215261793, hashtext(queue_name)); -- the first number is ours, and so is the next
    end if;
    started := holdfast.now();
    select * into waiting, scheduled from holdfast.measure(queue_name, greatest(bound, scheduled_bound));
    measured_in := holdfast.now() - started;
    is_certain := true;
end
$$;

-- Tell others what was counted. That never waits: somebody who waits for us may have the row, and then nobody would
-- get on. So it is left out if anybody else is at it.
create function holdfast.publish_depth(
    queue_name text, new_waiting bigint, new_scheduled bigint, took bigint
) returns void language plpgsql as $$
begin
    if not pg_try_advisory_xact_lock(1215261794, hashtext(queue_name)) then
        return;
    end if;
    update holdfast.queues
    set waiting = new_waiting, scheduled = new_scheduled, measured_at = holdfast.now(), measured_in = took
    where name = any (array(select name from holdfast.queues where name = queue_name for update skip locked));
    if not found and not exists (select from holdfast.queues where name = queue_name) then
        insert into holdfast.queues (name, waiting, scheduled, measured_at, measured_in)
        values (queue_name, new_waiting, new_scheduled, holdfast.now(), took)
        on conflict (name) do nothing;
    end if;
end
$$;

-- Count a queue for those who enqueue to it. Nothing if somebody else is at it.
create function holdfast.recount(queue_name text) returns void language plpgsql as $$
declare
    started bigint := holdfast.now();
    depth   record;
begin
    if pg_try_advisory_xact_lock(1215261794, hashtext(queue_name)) then
        select m.waiting, m.scheduled into depth
        from holdfast.queues as q
        cross join lateral holdfast.measure(
            q.name, greatest(coalesce(q.override_bound, q.declared_bound), q.scheduled_bound)
        ) as m
        where q.name = queue_name
          -- Unless somebody was faster.
          and (q.measured_at is null or q.measured_at + greatest(250000, 20 * q.measured_in) < started);
        if found then
            perform holdfast.publish_depth(queue_name, depth.waiting, depth.scheduled, holdfast.now() - started);
        end if;
    end if;
end
$$;

-- Take the keys of a new job, or return the job that has one of them. Refusals are raised as HF001, and their message
-- is the answer. `taken` of its keys are its own already.
create function holdfast.resolve_keys(
    new holdfast.new_job, moment bigint, taken integer
) returns uuid language plpgsql as $$
declare
    holder record;
    took   integer;
begin
    if taken = num_nonnulls(new.idempotency_key, new.unique_key) then
        return null;
    end if;
    loop
        -- One after the other: asked for both at once, the planner may well read all the keys of the task.
        select * into holder
        from holdfast.keys as k
        where k.task = new.task and k.kind = 1 and k.key = new.idempotency_key
          and (k.expires_at is null or k.expires_at > moment) and (taken = 0 or k.job <> new.id);
        if not found then
            select * into holder
            from holdfast.keys as k
            where k.task = new.task and k.kind = 2 and k.key = new.unique_key
              and (k.expires_at is null or k.expires_at > moment) and (taken = 0 or k.job <> new.id);
        end if;
        if found then
            if taken > 0 then
                delete from holdfast.keys as k where k.job = new.id;
            end if;
            if holder.kind = 1 and holder.fingerprint is distinct from new.fingerprint then
                raise exception using errcode = 'HF001', message = json_build_object(
                    'because', 'key', 'task', new.task, 'key', new.idempotency_key, 'existing', holder.job
                )::text;
            end if;
            return holder.job;
        end if;
        insert into holdfast.keys (task, kind, key, job, fingerprint, window_until)
        select new.task, mine.kind, mine.key, new.id, mine.fingerprint, mine.window_until
        from (
            values
                (1, new.idempotency_key, new.fingerprint, null::bigint),
                (2, new.unique_key, null, moment + new.unique_window)
        ) as mine (kind, key, fingerprint, window_until)
        where mine.key is not null
        on conflict (task, kind, key) do update set
            job = excluded.job,
            fingerprint = excluded.fingerprint,
            window_until = excluded.window_until,
            expires_at = null
        where keys.expires_at <= moment or (taken > 0 and keys.job = new.id);
        get diagnostics took = row_count;
        if took = num_nonnulls(new.idempotency_key, new.unique_key) then
            return null;
        end if;
        -- Somebody took one since we looked. Give back what we have, and look again.
        delete from holdfast.keys as k where k.job = new.id;
        taken := 0;
    end loop;
end
$$;

-- Take those keys of new jobs that nobody has, for the first that asks for one. Answers with {job: how many}.
--
-- Whoever waits for a key that somebody else is taking has taken only smaller ones, so nobody waits in a circle.
create function holdfast.take_new_keys(jobs holdfast.new_job[], moment bigint) returns jsonb language sql volatile as $$
    with taken as (
        insert into holdfast.keys (task, kind, key, job, fingerprint, window_until)
        select new.task, mine.kind, mine.key, new.id, mine.fingerprint, mine.window_until
        from unnest(jobs) with ordinality as new
        cross join lateral (
            values
                (1, new.idempotency_key, new.fingerprint, null::bigint),
                (2, new.unique_key, null, moment + new.unique_window)
        ) as mine (kind, key, fingerprint, window_until)
        where mine.key is not null
        order by new.task, mine.kind, mine.key, new.ordinality
        on conflict (task, kind, key) do nothing
        returning job
    )
    select coalesce(jsonb_object_agg(job, number), '{}') from (select job, count(*) as number from taken group by job) as of_jobs
$$;

-- The id of a job that is there already under the id of a new one.
create function holdfast.resolve_id(new holdfast.new_job) returns uuid language plpgsql as $$
declare
    there record;
begin
    select j.task, j.args into there from holdfast.jobs as j where j.id = new.id;
    if not found then
        return null;
    end if;
    if (there.task, there.args) is distinct from (new.task, new.args) then
        raise exception using errcode = 'HF001', message = json_build_object('because', 'id', 'existing', new.id)::text;
    end if;
    return new.id;
end
$$;

-- Insert new jobs in the transaction that is open, all but those that are skipped, and answer how many there were. By
-- itself it is the short way for jobs that have no keys and new ids, in queues that are known to have room, on a
-- connection that was set up for it. `lines` are those that the jobs stand in, if any.
create function holdfast.insert_jobs(
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
    if lines is not null then
        insert into holdfast.wakes (queue, line, priority, rule)
        select queue, line, priority, rule
        from json_to_recordset(lines) as woken (queue text, line uuid, priority smallint, rule text);
    end if;
    return inserted;
end
$$;

-- Enqueue jobs in the transaction that is open, and answer in JSON.
--
-- Jobs are a list of objects. Each needs id (a UUIDv7), task, queue and args (JSON, as text); the other fields are
-- those of holdfast.new_job. No id may stand there twice. The options are an object, none of which must be given:
--     sizes         cuts the jobs into calls: so many for each. A call is done whole or not at all. By default, one call.
--     instance      the instance that the caller means
--     is_plain      no job has a key, nor an id that might be there already
--     has_repeats   some ids might be there already
--     is_admitted   the caller knows that there is room
--     is_tight      the caller knows that there may be little room, whatever others have counted
--     is_locking    wait for other producers, to keep bounds exactly; otherwise they may be passed by what others
--                   enqueue at the same time
--     declared      {queue: [bound, bound of scheduled jobs]} that the caller's code declares
--     lines         [{queue, lines, priorities, rules}], the lines that jobs with limits stand in, as Holdfast's own
--                   producers make them, some fifty in each
--     lock_timeout  how many milliseconds to wait for a transaction that is using one of the keys
--     now           the time, for tests
-- The answer is an object.
--     found         {position: id} for each job that was there before
--     refused       {call: {"because": "room" | "key" | "id", ...}}
--     queues        {queue: {waiting, scheduled, bound, scheduled_bound}}, where it was looked at
-- or {"because": "instance"}. A refusal raises nothing, so that the caller's transaction stays usable.
create function holdfast.enqueue(jobs text, options text default '{}') returns text language plpgsql
    set search_path = pg_catalog, pg_temp
    -- On the caller's connection nobody else would see to it that a small table's plan is not kept for a large one.
    set enable_seqscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set jit = off
as $$
declare
    asked       constant json    := options::json;
    moment      constant bigint  := coalesce((asked ->> 'now')::bigint, holdfast.now());
    is_plain    constant boolean := coalesce((asked ->> 'is_plain')::boolean, false);
    is_admitted constant boolean := coalesce((asked ->> 'is_admitted')::boolean, false);
    is_locking  constant boolean := coalesce((asked ->> 'is_locking')::boolean, false);
    is_tight    constant boolean := coalesce((asked ->> 'is_tight')::boolean, false);
    has_repeats constant boolean := coalesce((asked ->> 'has_repeats')::boolean, true) and not is_plain;
    listed      constant json    := jobs::json; -- apart from the options, since each look into JSON reads all of it
    walked     holdfast.new_job[];
    must_walk  boolean   := not is_plain;
    taken      jsonb     := '{}'; -- {job: how many of its keys it has}
    sizes      integer[] := array(select json_array_elements_text(asked -> 'sizes')::integer);
    queues     jsonb     := '{}'; -- how full they are, with what was admitted so far
    base       jsonb;             -- the same with what no bound refuses of the call at hand
    room       jsonb;             -- the same with all of it
    matched    uuid[]    := '{}'; -- jobs that were there before, and
    spots      integer[] := '{}'; -- in whose stead
    kept       integer;           -- how many of them stand, whatever becomes of the call at hand
    refused    jsonb     := '{}';
    is_skipped boolean[] := '{}'; -- whether the job at a position is not inserted
    first      integer   := 1;
    spot       integer;
    job        holdfast.new_job;
    counted_as text;
    existing   uuid;
    inserted   integer;
    queue      record;
begin
    if asked ->> 'instance' <> (select id::text from holdfast.instance) then
        return '{"because": "instance"}';
    end if;
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if not is_plain or not is_admitted then
        walked := array(select new from json_populate_recordset(null::holdfast.new_job, listed) as new);
    end if;

    if not is_admitted then
        for queue in select new.queue as name, count(*) as more from unnest(walked) as new group by 1 order by 1 loop
            room := to_jsonb(holdfast.look_at_queue(queue.name, queue.more, asked -> 'declared', is_locking, is_tight));
            queues := queues || jsonb_build_object(queue.name, room);
            must_walk := must_walk or (room ->> 'is_certain')::boolean;
        end loop;
    end if;

    if asked ->> 'lock_timeout' is not null then
        perform set_config('lock_timeout', asked ->> 'lock_timeout', true);
    end if;
    -- Mostly every key is new. Then one statement takes them all.
    if must_walk and not has_repeats then
        taken := holdfast.take_new_keys(walked, moment);
        must_walk := queues <> '{}' or (
            select count(new.idempotency_key) + count(new.unique_key) > (select sum(value::bigint) from jsonb_each_text(taken))
                or (taken = '{}' and count(new.idempotency_key) + count(new.unique_key) > 0)
            from unnest(walked) as new
        );
    end if;

    if must_walk and sizes = '{}' then
        sizes := array[cardinality(walked)];
    end if;
    if must_walk then
        is_skipped := array_fill(false, array[cardinality(walked)]);
    end if;
    for number in 1 .. case when must_walk then cardinality(sizes) else 0 end loop
        base := queues;
        room := queues;
        kept := cardinality(matched);
        spot := first - 1;
        begin
            foreach job in array walked[first : first + sizes[number] - 1] loop
                spot := spot + 1;
                existing := case when job.is_repeat then holdfast.resolve_id(job) end;
                if existing is null and num_nonnulls(job.idempotency_key, job.unique_key) > 0 then
                    existing := holdfast.resolve_keys(job, moment, coalesce((taken ->> job.id::text)::integer, 0));
                end if;
                if existing is not null then
                    matched := array_append(matched, existing);
                    spots := array_append(spots, spot);
                    is_skipped[spot] := true;
                elsif room ? job.queue then
                    counted_as := case when coalesce(job.at, moment + job.delay) > moment then 'scheduled' else 'waiting' end;
                    room := jsonb_set(
                        room, array[job.queue, counted_as], to_jsonb((room -> job.queue ->> counted_as)::bigint + 1)
                    );
                    if job.is_exempt then
                        base := jsonb_set(
                            base, array[job.queue, counted_as], to_jsonb((base -> job.queue ->> counted_as)::bigint + 1)
                        );
                    end if;
                end if;
            end loop;
            perform holdfast.check_room(base, room);
            queues := room;
        exception when sqlstate 'HF001' then
            refused := refused || jsonb_build_object(number - 1, sqlerrm::jsonb);
            if taken <> '{}' then
                delete from holdfast.keys as k
                where k.job = any (array(select id from unnest(walked[first : first + sizes[number] - 1])));
            end if;
            matched := matched[:kept];
            spots := spots[:kept];
            for refused_spot in first .. first + sizes[number] - 1 loop
                is_skipped[refused_spot] := true;
            end loop;
        end;
        first := first + sizes[number];
    end loop;

    inserted := holdfast.insert_jobs(listed, moment, is_skipped, asked -> 'lines');
    if has_repeats and inserted < (select count(*) from unnest(is_skipped) as s where not s) then
        -- It may be another job. Who tries again finds it.
        raise exception using errcode = '40001', message = 'a job with the same id was enqueued in the meantime';
    end if;

    for queue in select key as name, value as depth from jsonb_each(queues) order by 1 loop
        if is_locking and (queue.depth ->> 'is_certain')::boolean then
            perform holdfast.publish_depth(
                queue.name,
                (queue.depth ->> 'waiting')::bigint,
                (queue.depth ->> 'scheduled')::bigint,
                (queue.depth ->> 'measured_in')::bigint
            );
        end if;
    end loop;
    return json_build_object(
        'found', coalesce(
            (select json_object_agg(s - 1, m) from unnest(spots, matched) as found (s, m)), '{}'
        ),
        'refused', refused, 'queues', queues
    );
end
$$;

-- Raise a refusal if a queue has more in it than it may, and it would be this call that put it there.
create function holdfast.check_room(before jsonb, after jsonb) returns void language plpgsql as $$
declare
    queue record;
begin
    for queue in
        select key as name, value as depth, before -> key as depth_before from jsonb_each(after) order by 1
    loop
        if ((queue.depth ->> 'waiting')::bigint > (queue.depth ->> 'bound')::bigint
                and queue.depth -> 'waiting' <> queue.depth_before -> 'waiting')
            or ((queue.depth ->> 'scheduled')::bigint > (queue.depth ->> 'scheduled_bound')::bigint
                and queue.depth -> 'scheduled' <> queue.depth_before -> 'scheduled') then
            raise exception using errcode = 'HF001', message = json_build_object(
                'because', 'room', 'queue', queue.name,
                'waiting', queue.depth_before -> 'waiting', 'scheduled', queue.depth_before -> 'scheduled',
                'bound', queue.depth -> 'bound', 'scheduled_bound', queue.depth -> 'scheduled_bound',
                'more_waiting', (queue.depth ->> 'waiting')::bigint - (queue.depth_before ->> 'waiting')::bigint,
                'more_scheduled', (queue.depth ->> 'scheduled')::bigint - (queue.depth_before ->> 'scheduled')::bigint
            )::text;
        end if;
    end loop;
end
$$;
