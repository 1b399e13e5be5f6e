-- Lines, gates and the jobs in them are known to each other by their numbers, which are shorter than ids. A number is never
-- given to another line or gate: whoever remembers it finds the same one, or none.
-- gates: their numbers, as JSON. holder: the number of a job.
-- The column `line` of jobs was made for ids, so SQLite would not look up a column of integers in its index: `line = +seq`
-- takes the column for a mere value.

drop index holdfast_in_line;
drop index holdfast_open_lines;
drop index holdfast_parked_lines;
drop index holdfast_timed_gates;
drop index holdfast_named_gates;
drop index holdfast_unused_gates;
alter table holdfast_lines rename to holdfast_lines_before;
alter table holdfast_gates rename to holdfast_gates_before;

create table holdfast_lines (
    seq       integer primary key autoincrement,
    id        blob    not null unique,
    queue     text    not null,
    priority  integer not null,
    gates     text    not null,
    state     integer not null,
    parked_at integer,
    turn      integer not null,
    tenant    integer
);

create table holdfast_gates (
    seq         integer primary key autoincrement,
    id          blob    not null unique,
    kind        integer not null,
    name        text    not null,
    key         text    not null,
    declared    integer not null,
    override    integer,
    per         integer not null,
    is_blocking integer not null,
    held        integer not null,
    holder      integer,
    log         text    not null,
    next_at     integer,
    turn        integer not null,
    lines       integer not null
);

insert into holdfast_gates
select
    seq, id, kind, name, key, declared, override, per, is_blocking, held,
    (select job.seq from holdfast_jobs as job where job.id = gate.holder),
    log, next_at, turn, lines
from holdfast_gates_before as gate;

insert into holdfast_lines
select
    seq, id, queue, priority,
    (
        select json_group_array(number)
        from (
            select gate.seq as number
            from json_each('[1, 17, 33, 49]') as start
            cross join holdfast_gates as gate on gate.id = substr(line.gates, start.value, 16)
        )
    ),
    state,
    (select gate.seq from holdfast_gates as gate where gate.id = line.parked_at),
    turn,
    (select gate.seq from holdfast_gates as gate where gate.id = line.tenant)
from holdfast_lines_before as line;

update holdfast_jobs
set line = (select each.seq from holdfast_lines as each where each.id = holdfast_jobs.line)
where line is not null;

drop table holdfast_lines_before;
drop table holdfast_gates_before;

create index holdfast_open_lines on holdfast_lines (queue, priority desc, turn) where state = 1;
create index holdfast_parked_lines on holdfast_lines (parked_at, priority desc, turn) where state = 2;
create index holdfast_timed_gates on holdfast_gates (next_at) where next_at is not null;
create index holdfast_named_gates on holdfast_gates (name, kind, key);
create index holdfast_unused_gates on holdfast_gates (id) where lines = 0;

-- A job that runs or is done costs nothing but its row, also in a line. The second index has those that may become ready.
-- The line comes first in the conditions: for a job without one, the rest is not looked at.
create index holdfast_in_line on holdfast_jobs (line, lane, place) where line is not null and stage = 2;
create index holdfast_away on holdfast_jobs (line) where line is not null and stage in (1, 5, 6);
