-- Jobs, the keys that lead to them, what went wrong, and who works.
-- Times are microseconds since 1970 in UTC, ids are the 16 bytes of a UUID.
-- stage: 1 scheduled, 2 ready, 3 active, 4 completed, 5 cancelled, 6 dead.
-- lane: 0 given back, 1 fresh. delivery: 0 at least once, 1 at most once, 2 transactional.

create table holdfast_jobs (
    seq                 integer primary key,
    id                  blob    not null unique,
    task                text    not null,
    queue               text    not null,
    priority            integer not null,
    stage               integer not null,
    lane                integer not null default 1,
    place               integer not null,
    args                text    not null,
    max_attempts        integer not null,
    delivery            integer not null,
    created_at          integer not null,
    due_at              integer not null,
    attempt             integer not null default 0,
    runs                integer not null default 0,
    crashes             integer not null default 0,
    waits               integer not null default 0,
    pool_tries          integer not null default 0,
    generation          integer not null default 0,
    edits               integer not null default 0,
    expires_at          integer,
    started_at          integer,
    finished_at         integer,
    worker              blob,
    token               blob,
    result              text,
    idempotency_key     text,
    unique_key          text,
    line                blob,
    tags                text,
    context             text,
    error_type          text,
    error_message       text,
    cancel_requested_at integer,
    cancel_reason       text,
    is_unannounced      integer not null default 0 -- it is dead, and nobody has been told
);

-- Only live states are indexed, so that a finished job costs nothing but its row.
create index holdfast_ready on holdfast_jobs (queue, priority desc, lane, place) where stage = 2 and line is null;
create index holdfast_in_line on holdfast_jobs (line, stage, lane, place) where line is not null;
create index holdfast_due on holdfast_jobs (due_at, id) where stage = 1;
create index holdfast_active on holdfast_jobs (worker) where stage = 3;
create index holdfast_dead on holdfast_jobs (id) where stage = 6;
create index holdfast_unannounced on holdfast_jobs (finished_at, id) where is_unannounced = 1;
create index holdfast_expiring on holdfast_jobs (expires_at) where stage < 3 and expires_at is not null;

-- Jobs under limits stand in lines, see traffic.py. state: 0 closed, 1 open, 2 parked. gates: their ids, one after the
-- other.
create table holdfast_lines (
    seq       integer primary key,
    id        blob    not null unique,
    queue     text    not null,
    priority  integer not null,
    gates     blob    not null,
    state     integer not null,
    parked_at blob,
    turn      integer not null,
    tenant    blob
);
create index holdfast_open_lines on holdfast_lines (queue, priority desc, turn) where state = 1;
create index holdfast_parked_lines on holdfast_lines (parked_at, priority desc, turn) where state = 2;

-- kind: 1 limit, 2 rate, 3 order, 4 fair. log: when how many were claimed, as JSON.
create table holdfast_gates (
    seq         integer primary key,
    id          blob    not null unique,
    kind        integer not null,
    name        text    not null,
    key         text    not null,
    declared    integer not null,
    override    integer,
    per         integer not null,
    is_blocking integer not null,
    held        integer not null,
    holder      blob,
    log         text    not null,
    next_at     integer,
    turn        integer not null,
    lines       integer not null
);
create index holdfast_timed_gates on holdfast_gates (next_at) where next_at is not null;
create index holdfast_unused_gates on holdfast_gates (id) where lines = 0;

create table holdfast_keys (
    task         text    not null,
    kind         integer not null,
    key          text    not null,
    job          blob    not null,
    fingerprint  blob,
    window_until integer,
    expires_at   integer,
    primary key (task, kind, key)
) without rowid;

create index holdfast_keys_of_job on holdfast_keys (job);
create index holdfast_keys_ending on holdfast_keys (expires_at) where expires_at is not null;

create table holdfast_failures (
    seq        integer primary key,
    job        blob    not null,
    run        integer not null,
    generation integer not null,
    started_at integer,
    ended_at   integer not null,
    worker     blob,
    kind       text    not null,
    error_type text    not null,
    message    text    not null,
    traceback  text
);

create index holdfast_failures_of_job on holdfast_failures (job);

-- The last report of each job that reports at all, and in which of its runs it was made.
create table holdfast_progress (
    job   blob    primary key,
    run   integer not null,
    done  real    not null,
    total real,
    note  text    not null,
    at    integer not null
) without rowid;

create table holdfast_queues (
    name            text    primary key,
    waiting         integer not null default 0,
    scheduled       integer not null default 0,
    last_place      integer not null default 0,
    declared_bound  integer not null default 100000,
    override_bound  integer,
    scheduled_bound integer not null default 100000,
    paused_at       integer
) without rowid;

create table holdfast_workers (
    id         blob    primary key,
    name       text    not null,
    host       text    not null,
    pid        integer not null,
    queues     text    not null,
    started_at integer not null,
    beat_at    integer not null,
    beat       integer not null,
    dead_at    integer,
    is_quiet   integer not null default 0
) without rowid;

create table holdfast_tasks (
    name         text    primary key,
    definition   text    not null,
    revision     integer not null,
    published_at integer not null,
    code_from    integer not null -- when the code was started that it comes from
) without rowid;

-- What is to be enqueued again and again, and where it stands: next_tick, unless nobody has declared it since
-- orphaned_at. All of it is in the record, as JSON.
create table holdfast_schedules (
    name        text    primary key,
    next_tick   integer,
    orphaned_at integer,
    record      text    not null
) without rowid;

create index holdfast_schedules_due on holdfast_schedules (next_tick) where next_tick is not null;

-- The last ticks that made a job, one row for each.
create table holdfast_ticks (
    schedule text    not null,
    tick     integer not null,
    job      blob    not null,
    primary key (schedule, tick)
) without rowid;
