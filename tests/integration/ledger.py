"""A table that tasks write to in their own transactions, and the jobs beside it, seen from outside.

It has no key: whoever writes twice leaves two rows.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from holdfast.store import Store
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore


@dataclass(frozen=True)
class Ledger:
    """The table `ledger` in the database at this URL."""

    url: str

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def path(self) -> Path:
        return Path(self.url.removeprefix("sqlite:///"))

    def make_store(self, **options: Any) -> Store:
        return SqliteStore(self.path, **options) if self.is_sqlite else PostgresStore(self.url, **options)

    def make(self) -> None:
        self.run("create table ledger (entry text not null)")

    def run(self, sql: str) -> None:
        with self._connected() as connection:
            connection.execute(sql)

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
            return found

    def entries(self) -> list[str]:
        return sorted(entry for (entry,) in self.ask("select entry from ledger"))

    def jobs(self) -> dict[UUID, int]:
        """The stage of each job."""
        if self.is_sqlite:
            return {UUID(bytes=id): stage for id, stage in self.ask("select id, stage from holdfast_jobs")}
        return dict(self.ask("select id, stage from holdfast.jobs"))

    def completed(self) -> list[str]:
        """What those jobs were given that are completed: the one argument of their task, `entry`."""
        jobs, text = (
            ("holdfast_jobs", "args ->> '$.entry'") if self.is_sqlite else ("holdfast.jobs", "args::json ->> 'entry'")
        )
        return sorted(entry for (entry,) in self.ask(f"select {text} from {jobs} where stage = 4") if entry is not None)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        if self.is_sqlite:
            with contextlib.closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
                yield connection
        else:
            with psycopg.connect(self.url, autocommit=True) as connection:
                yield connection
