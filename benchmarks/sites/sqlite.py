"""SQLite: a file in a folder."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.app import BOUND, QUEUE, TASK
from benchmarks.limit import Limit
from benchmarks.limits.sqlite import SqliteLimit
from benchmarks.site import Sample
from holdfast import Retention
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.migrate import migrate, shipped_migrations

# Ids that sort before those of today, one after the other, as if they had been enqueued long ago.
_FILL = """
with recursive numbers (number) as (select 1 union all select number + 1 from numbers where number < :count)
insert into holdfast_jobs (
    id, task, queue, priority, stage, place, args, max_attempts, delivery, created_at, due_at,
    attempt, runs, started_at, finished_at, worker, token, result
)
select
    cast(char(1) || printf('%015d', :first + number) as blob), :task, :queue, 5, :stage, :first + number,
    json_object('number', number), 5, 0, :now, :now,
    :stage = 4, :stage = 4, iif(:stage = 4, :now, null), iif(:stage = 4, :now, null),
    iif(:stage = 4, zeroblob(16), null), iif(:stage = 4, zeroblob(16), null), iif(:stage = 4, 'null', null)
from numbers
"""
_COUNT = """
insert into holdfast_queues (name, waiting, last_place, declared_bound, scheduled_bound) values (?, ?, ?, ?, ?)
"""
_SPAN = "select count(*), max(finished_at) - min(started_at) from holdfast_jobs where finished_at is not null"
_LATER_SPAN = """
select count(*), max(finished_at) - first_end
from holdfast_jobs
cross join (
    select finished_at as first_end
    from holdfast_jobs
    where finished_at is not null
    order by finished_at
    limit 1 offset (select count(*) from holdfast_jobs where finished_at is not null) / 4
) as part
where finished_at > first_end
group by first_end
"""
_READY, _COMPLETED = 2, 4
_LONG_AGO = 1_700_000_000_000_000
_PRAGMAS = ("journal_mode", "synchronous", "cache_size", "page_size", "wal_autocheckpoint")


@dataclass(frozen=True)
class SqliteSite:
    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def make_store(self, retention: Retention | None = None) -> SqliteStore:
        return SqliteStore(self.path, retention=retention)

    async def open_limit(self) -> Limit:
        return SqliteLimit(self.path)

    async def fill(self, *, ready: int = 0, finished: int = 0) -> None:
        connection = Connection(self.path)
        try:
            migrate(connection, shipped_migrations())
            connection.execute("begin immediate")
            for first, count, stage in ((0, finished, _COMPLETED), (finished, ready, _READY)):
                if count:
                    values = {"first": first, "count": count, "stage": stage}
                    names = {"task": TASK, "queue": QUEUE, "now": _LONG_AGO}
                    connection.raw.execute(_FILL, values | names)
            connection.execute(_COUNT, (QUEUE, ready, finished + ready, BOUND, BOUND))
            connection.execute("commit")
            connection.execute("pragma wal_checkpoint(truncate)")
        finally:
            connection.close()

    async def vitals(self) -> Sample:
        wal = self.path.with_name(f"{self.path.name}-wal")
        return {
            "file MB": self.path.stat().st_size / 1e6,
            "wal MB": wal.stat().st_size / 1e6 if wal.exists() else 0.0,
        }

    async def span(self, *, is_warm: bool = False) -> tuple[int, float]:
        connection = Connection(self.path)
        try:
            ((jobs, microseconds),) = connection.execute(_LATER_SPAN if is_warm else _SPAN)
            return jobs, microseconds / 1e6
        finally:
            connection.close()

    async def queries(self) -> float:
        return -1.0

    def server_cpu(self) -> None:
        return None


class SqliteHost:
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def fresh(self) -> Iterator[SqliteSite]:
        """A path where there is nothing yet. All that lies beside it afterwards is removed, too."""
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=self._folder) as made:
            yield SqliteSite(Path(made) / "jobs.db")

    def describe(self) -> dict[str, Any]:
        with self.fresh() as site:
            connection = Connection(site.path)
            try:
                settings = {name: connection.execute(f"pragma {name}")[0][0] for name in _PRAGMAS}
            finally:
                connection.close()
        return {
            "version": sqlite3.sqlite_version,
            "durability": "enqueue and settle: synchronous=FULL; claims: NORMAL",
            "settings": settings,
        }
