"""PostgreSQL: a database on a private server that waits for its disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import asyncpg
from psycopg import sql

from benchmarks.app import BOUND, QUEUE, TASK
from benchmarks.limit import Limit
from benchmarks.limits.postgres import PostgresLimit
from benchmarks.site import Sample
from holdfast import Retention
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.migrate import migrate, shipped_migrations
from holdfast.stores.postgres.statements import statement
from tests.servers.postgres import PostgresServer

_SETTINGS: dict[str, str | int] = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "none",  # a database that is asked how many it takes switches it on
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "deadlock_timeout": "50ms",  # less than the store waits for any lock, so that no deadlock passes for waiting
}
_REPORTED = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "autovacuum_naptime",
    "deadlock_timeout",
    "shared_preload_libraries",
)
# Ids that sort before those of today, one after the other, as if they had been enqueued long ago.
_FILL = """
insert into holdfast.jobs (
    id, place, created_at, due_at, max_attempts, stage, priority, delivery, task, queue, args,
    attempt, runs, started_at, finished_at, worker, token, result
)
select
    lpad(to_hex(number), 32, '0')::uuid, number, $4, $4, 5, $3, 5, 0, $5, $6, '{"number":' || number || '}',
    past.runs, past.runs, past.at, past.at, past.worker, past.worker, past.result
from generate_series($1::bigint + 1, $1::bigint + $2::bigint) as number
cross join (
    select
        case when $3 = 4 then 1 else 0 end, case when $3 = 4 then $4::bigint end,
        case when $3 = 4 then gen_random_uuid() end, case when $3 = 4 then 'null' end
) as past (runs, at, worker, result)
"""
_VITALS = """
select
    n_live_tup as "live rows", n_dead_tup as "dead rows", autovacuum_count as vacuums,
    pg_table_size(relid) / 1e6 as "table MB", pg_indexes_size(relid) / 1e6 as "index MB",
    (select deadlocks from pg_stat_database where datname = current_database()) as deadlocks
from pg_stat_user_tables
where schemaname = 'holdfast' and relname = 'jobs'
"""
_SPAN = "select count(*), max(finished_at) - min(started_at) from holdfast.jobs where finished_at is not null"
_LATER_SPAN = """
select count(*), max(finished_at) - first_end
from holdfast.jobs
cross join (
    select finished_at as first_end
    from holdfast.jobs
    where finished_at is not null
    order by finished_at
    limit 1 offset (select count(*) from holdfast.jobs where finished_at is not null) / 4
) as part
where finished_at > first_end
group by first_end
"""
_QUERIES = """
select sum(calls) from pg_stat_statements
where toplevel and dbid = (select oid from pg_database where datname = current_database())
  and query !~* '^(begin|commit|create|alter|set|show|reset|deallocate|select sum|select quote_ident)'
"""
_READY, _COMPLETED = 2, 4
_LONG_AGO = 1_700_000_000_000_000


@dataclass(frozen=True)
class PostgresSite:
    url: str
    server: int
    """The process of the server that all of its others descend from."""

    def make_store(self, retention: Retention | None = None) -> PostgresStore:
        return PostgresStore(self.url, retention=retention)

    async def open_limit(self) -> Limit:
        return await PostgresLimit.open(self.url)

    async def fill(self, *, ready: int = 0, finished: int = 0) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await migrate(connection, shipped_migrations())
            for first, count, stage in ((0, finished, _COMPLETED), (finished, ready, _READY)):
                if count:
                    await connection.execute(_FILL, first, count, stage, _LONG_AGO, TASK, QUEUE)
            await connection.execute("select setval('holdfast.places', $1)", finished + ready)
            await connection.execute(statement("declare_queues"), [QUEUE], [BOUND], [BOUND])
            await connection.execute("vacuum (analyze) holdfast.jobs")
            await connection.execute("checkpoint")
        finally:
            await connection.close()

    async def vitals(self) -> Sample:
        connection = await asyncpg.connect(self.url)
        try:
            (row,) = await connection.fetch(_VITALS)
            return {name: float(value) for name, value in row.items()}
        finally:
            await connection.close()

    async def span(self, *, is_warm: bool = False) -> tuple[int, float]:
        connection = await asyncpg.connect(self.url)
        try:
            ((jobs, microseconds),) = await connection.fetch(_LATER_SPAN if is_warm else _SPAN)
            return jobs, microseconds / 1e6
        finally:
            await connection.close()

    async def queries(self) -> float:
        """What was sent by whoever has connected since this was first asked, without what functions execute."""
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute("create extension if not exists pg_stat_statements")
            name = await connection.fetchval("select quote_ident(current_database())")
            await connection.execute(f"alter database {name} set pg_stat_statements.track = 'top'")
            return float(await connection.fetchval(_QUERIES) or 0)
        finally:
            await connection.close()

    def server_cpu(self) -> float:
        return sum(_cpu_seconds(process, self.server) for process in Path("/proc").glob("[0-9]*"))


class PostgresHost:
    """A server for the whole run, in a folder of its own."""

    name = "postgres"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._server = self._stack.enter_context(
            PostgresServer(is_synced=True, settings=_SETTINGS, parent=self._folder)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def fresh(self) -> Iterator[PostgresSite]:
        url = self._server.create_database()
        try:
            # What the side before left to be written is written before this one begins.
            self._server.execute(sql.SQL("checkpoint"))
            yield PostgresSite(url, self._server.pid or 0)
        finally:
            self._server.drop_database(url)

    def describe(self) -> dict[str, Any]:
        ((version,),) = self._server.execute(sql.SQL("show server_version"))
        settings = {
            name: self._server.execute(sql.SQL("show {}").format(sql.Identifier(name)))[0][0] for name in _REPORTED
        }
        return {
            "version": version,
            "durability": "enqueue and settle: fsync=on, synchronous_commit=on; claims: synchronous_commit=off",
            "settings": settings,
        }


def _cpu_seconds(process: Path, server: int) -> float:
    """What a process of the server has used so far, and what those used that it has seen end."""
    try:
        text = (process / "stat").read_text()
        parent, *of_children = (int(text.rpartition(")")[2].split()[index]) for index in (1, 13, 14))
        if server not in (parent, int(process.name)):
            return 0.0
        # Nanoseconds here, hundredths of a second there.
        return int((process / "schedstat").read_text().split()[0]) / 1e9 + sum(of_children) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0
