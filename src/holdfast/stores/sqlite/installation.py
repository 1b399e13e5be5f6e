"""Holdfast's tables in one SQLite file, as its owner sees them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast.errors import StoreUnavailable
from holdfast.installation import Finding, Report, Severity, Step, judge_schema, sorted_findings
from holdfast.stores.sqlite.connection import Connection, translated
from holdfast.stores.sqlite.migrate import Migration, applied, shipped_migrations
from holdfast.stores.sqlite.script import script
from holdfast.stores.sqlite.store import SqliteStore

_OURS = (
    "select type || ' ' || name, sql from sqlite_master where tbl_name like 'holdfast\\_%' escape '\\' and sql <> ''"
)


class SqliteInstallation:
    """The tables in a file that start with holdfast_."""

    def __init__(self, path: Path, migrations: Sequence[Migration] | None = None) -> None:
        self._path = path
        self._migrations = list(migrations or shipped_migrations())

    @property
    def place(self) -> str:
        return str(self._path)

    @property
    def steps(self) -> list[Step]:
        return [Step(migration.number, migration.name) for migration in self._migrations]

    async def schema(self) -> int | None:
        return await asyncio.to_thread(self._schema) if self._path.exists() else None

    def _schema(self) -> int:
        with self._connected() as connection:
            return applied(connection)

    async def migrate(self, tell: Callable[[str], None]) -> list[Step]:
        before = await self.schema() or 0
        store = SqliteStore(self._path, migrations=self._migrations)
        try:
            await store.open()
        finally:
            await store.close()
        return [step for step in self.steps if step.number > before]

    def script(self, after: int) -> str:
        return script(self._migrations, after)

    async def check(self) -> Report:
        if not self._path.exists():
            raise StoreUnavailable(f"{self._path} does not exist. Make it with `holdfast db migrate`, or name another.")
        return await asyncio.to_thread(self._check)

    def _check(self) -> Report:
        needed = self._migrations[-1].number
        findings = list(self._judge_file())
        with self._connected() as connection:
            number = applied(connection)
            findings += _judge_content(connection)
            if number == needed:
                findings += _compare(self._wanted(), dict(connection.execute(_OURS)))
            else:
                findings.append(judge_schema(number, needed))
        return Report(f"SQLite {sqlite3.sqlite_version}", number, needed, sorted_findings(findings))

    def _wanted(self) -> dict[str, str]:
        """What the migrations make, tried out in memory."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            connection.executescript(script(self._migrations, 0))
            return dict(connection.execute(_OURS).fetchall())

    def _judge_file(self) -> Iterator[Finding]:
        for path, name in ((self._path, "The file"), (self._path.parent, "Its folder")):
            if not os.access(path, os.W_OK):
                yield Finding(
                    Severity.WRONG,
                    f"{name} can't be written by this user: {path}",
                    "Change its owner or its rights, for the file and its folder.",
                )

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """To read. The file is there, or else this fails: nothing is created."""
        connection = Connection(self._path, is_reader=True)
        try:
            with translated(self._path):
                yield connection
        finally:
            connection.close()


def _judge_content(connection: Connection) -> Iterator[Finding]:
    ((verdict,),) = connection.execute("pragma quick_check(1)")
    if verdict != "ok":
        yield Finding(
            Severity.WRONG,
            f"The file is damaged: {verdict}.",
            "Stop all workers, keep a copy, and restore a backup or use `sqlite3 FILE .recover`.",
        )
    ((mode,),) = connection.execute("pragma journal_mode")
    if mode != "wal":
        yield Finding(
            Severity.WARNING,
            f"The file is in journal mode {mode}: readers and writers wait for each other.",
            "Holdfast puts it into WAL mode when it opens it; look for another program that puts it back.",
        )


def _compare(wanted: dict[str, str], found: dict[str, str]) -> Iterator[Finding]:
    for thing in sorted(wanted.keys() | found.keys()):
        if thing not in found:
            problem, advice = "is missing", "Make it anew as `holdfast db sql` prints it."
        elif thing not in wanted:
            problem, advice = "is not Holdfast's", "Give it another name or place: it may be in a migration's way."
        elif _squeezed(wanted[thing]) != _squeezed(found[thing]):
            problem, advice = "is not as it was", "Compare it with what `holdfast db sql` prints, and restore it."
        else:
            continue
        severity = Severity.WRONG if thing in wanted else Severity.WARNING
        yield Finding(severity, f"The {thing} {problem}.", advice)


def _squeezed(sql: str) -> str:
    """How it was laid out does not matter."""
    return "".join(sql.split())
