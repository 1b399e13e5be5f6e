"""A database with a long past and a lot to do: a million finished jobs, and many that wait, some of them in lines."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import psycopg

FINISHED: Final = 1_000_000
READY: Final = 200_000
SCHEDULED: Final = 100_000
"""Half of them wait for a breaker."""
ACTIVE: Final = 1_000
KEYS: Final = 100_000
LINES: Final = 20_000
"""Half of them are open and half are parked, each at a gate of its own. All have one job; the first one has most."""
LINED: Final = 60_000
QUEUE: Final = "crowd"
LINED_QUEUE: Final = "lined"
TASK: Final = "task"
BREAKER: Final = "stripe"
WORKER: Final = UUID(int=7)
TOKEN: Final = UUID(int=8)
IN_LINE: Final = 7
LINE: Final = 8
GATE: Final = 9
"""Kinds of ids beside the stages."""
LATER: Final = 4_000_000_000_000_000
"""A time that is far away, in microseconds."""
RIPE: Final = 5_000
"""So many of the scheduled jobs are due. As many ready ones have expired; they are in a queue of their own."""

_JOBS = """
    insert into holdfast.jobs (
        id, place, created_at, due_at, expires_at, started_at, finished_at, worker, token, max_attempts, attempt, runs,
        stage, priority, delivery, task, queue, args, idempotency_key, line, breaker
    )
    select
        holdfast_test_id({kind}, n), nextval('holdfast.places'), n, {due}, {expires}, {started}, {finished},
        {worker}, {token}, 5, {attempt}, {attempt}, {stage}, 5, 0, '{task}', {queue}, '{{"number": 17}}', {key},
        {line}, {breaker}
    from generate_series(1, {number}) as n
"""
_LINES = f"""
    insert into holdfast.lines (id, queue, priority, gates, state, parked_at, turn)
    select
        holdfast_test_id({LINE}, n), '{LINED_QUEUE}', 5, array[holdfast_test_id({GATE}, n)], 1 + n % 2,
        case when n % 2 = 1 then holdfast_test_id({GATE}, n) end, n
    from generate_series(1, {{number}}) as n
"""
_GATES = f"""
    insert into holdfast.gates (id, kind, name, key, declared, per, is_blocking, next_at, lines)
    select
        holdfast_test_id({GATE}, n), 2, 'task', n::text, 1, 1000000, false,
        case when n % 2 = 1 then case when n <= {RIPE} then n else {LATER} end end, n % 2
    from generate_series(1, {{number}}) as n
"""
_WAKES = f"""
    insert into holdfast.wakes (queue, lines)
    select '{LINED_QUEUE}', array[holdfast_test_id({LINE}, n)] from generate_series(1, {{number}}) as n
"""
_FUNCTION = """
    create or replace function holdfast_test_id(kind integer, n bigint) returns uuid language sql immutable as $$
        select (lpad(to_hex(kind), 2, '0') || lpad(to_hex(n), 10, '0') || '70008000000000000000')::uuid
    $$
"""


def id_of(kind: int, number: int) -> UUID:
    """The id of a job: kinds are the stages, in the order of which the jobs were made."""
    return UUID(int=kind << 120 | number << 80 | 0x7000_8000_0000_0000_0000)


def ids_of(kind: int, count: int, first: int = 1) -> list[UUID]:
    return [id_of(kind, number) for number in range(first, first + count)]


def fill(connection: psycopg.Connection, finished: int = FINISHED) -> None:
    """Fill a database that has Holdfast's tables, and nothing in them, as quickly as can be."""
    share = finished / FINISHED
    connection.execute(_FUNCTION)
    connection.execute("insert into holdfast.workers select %s, 'worker', 'host', 1, '{}', 0, 0, 1", [WORKER])
    connection.execute("insert into holdfast.queues (name, declared_bound) values (%s, 1000000)", [QUEUE])
    lines = round(LINES * share)
    line = f"holdfast_test_id({LINE}, case when n <= {lines} then n else 1 end)"
    over = f"case when n <= {RIPE} then n else {LATER} end"
    mine = {"worker": f"'{WORKER}'", "token": f"'{TOKEN}'", "started": "n", "attempt": "1"}
    for kind, number, fields in (
        (4, finished, mine | {"finished": "n", "key": f"case when n <= {KEYS * share:.0f} then n::text end"}),
        (2, round(READY * share), {"expires": over, "queue": f"case when n <= {RIPE} then 'late' else '{QUEUE}' end"}),
        (1, round(SCHEDULED * share), {"due": over, "breaker": f"case when n % 2 = 0 then '{BREAKER}' end"}),
        (3, ACTIVE, mine | {"key": "'active ' || n"}),
        (IN_LINE, round(LINED * share), {"queue": f"'{LINED_QUEUE}'", "line": line}),
    ):
        usual = dict.fromkeys(("expires", "started", "finished", "worker", "token", "key", "line", "breaker"), "null")
        values = usual | {"due": "0", "attempt": "0", "task": TASK, "queue": f"'{QUEUE}'"} | fields
        stage = 2 if kind == IN_LINE else kind
        connection.execute(_JOBS.format(kind=kind, number=number, stage=stage, **values).encode())
    connection.execute(_LINES.format(number=lines).encode())
    connection.execute(_GATES.format(number=lines).encode())
    connection.execute(_WAKES.format(number=lines).encode())
    connection.execute("""
        insert into holdfast.keys (task, kind, key, job, expires_at)
        select task, 1, idempotency_key, id, case when stage = 4 then finished_at end
        from holdfast.jobs where idempotency_key is not null
    """)
    connection.execute("""
        insert into holdfast.failures (job, run, generation, ended_at, kind, error_type, message)
        select holdfast_test_id(4, n), 1, 0, 1, 'error', 'Error', 'no' from generate_series(1, 50000) as n
    """)
    connection.execute("""
        insert into holdfast.progress (job, run, done, note, at)
        select holdfast_test_id(4, n), 1, 1, '', 1 from generate_series(1, 50000) as n
    """)


def empty(connection: psycopg.Connection) -> None:
    """Row by row: to truncate a table would make everybody forget the plans for it."""
    for table in ("jobs", "keys", "failures", "progress", "workers", "queues", "lines", "gates", "wakes"):
        connection.execute(f"delete from holdfast.{table}".encode())
