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

    def completed(self) -> list[str]:
        """What those jobs were given that are completed: the one argument of their task, `entry`."""
        text = "json_extract(args, '$.entry')" if self.is_sqlite else "args::json ->> 'entry'"
        found = self.ask(f"select {text} from {self._jobs} where stage = 4")
        return sorted(entry for (entry,) in found if entry is not None)

    def crashed(self) -> int:
        """How many jobs were running in a process that was killed."""
        ((count,),) = self.ask(f"select count(*) from {self._jobs} where crashes > 0")
        return int(count)

    @property
    def _jobs(self) -> str:
        return "holdfast_jobs" if self.is_sqlite else "holdfast.jobs"

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        if self.is_sqlite:
            with contextlib.closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
                yield connection
        else:
            with psycopg.connect(self.url, autocommit=True) as connection:
                yield connection
