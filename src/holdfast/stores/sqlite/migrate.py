"""Numbered migrations, applied by whoever comes first. The others wait for their turn and find them done."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from uuid import UUID

from holdfast.errors import SchemaOutdated, SchemaTooNew
from holdfast.stores.sqlite.connection import Connection, translate

_BOOKKEEPING = (
    """create table if not exists holdfast_migrations (
        number integer primary key, name text not null, applied_at text not null default current_timestamp)""",
    "create table if not exists holdfast_meta (key text primary key, value blob not null) without rowid",
)
_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True)
class Migration:
    """One numbered step forward."""

    number: int
    name: str
    sql: str

    def statements(self) -> Iterator[str]:
        """One by one: sqlite3's own executescript would commit in between."""
        statement = ""
        for line in self.sql.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                yield statement
                statement = ""
        if statement.strip():
            yield statement


def shipped_migrations(folder: Traversable | None = None) -> list[Migration]:
    """The migrations of this version, in order."""
    folder = folder or resources.files("holdfast.stores.sqlite").joinpath("migrations")
    found = [(match, file) for file in folder.iterdir() if (match := _FILE_NAME.fullmatch(file.name))]
    migrations = [Migration(int(match[1]), match[2], file.read_text("utf-8")) for match, file in found]
    return sorted(migrations, key=lambda migration: migration.number)


def migrate(connection: Connection, migrations: list[Migration]) -> UUID:
    """Bring the file to the newest of these migrations, whole or not at all, and return its instance id.

    The caller holds the turn, so that two processes that open a new file don't get in each other's way.
    """
    known = migrations[-1].number
    applied = _applied(connection)
    if applied > known:
        raise SchemaTooNew(
            f"{connection.path} has schema {applied}, and this version of Holdfast knows {known}. "
            "Upgrade the holdfast package in this process."
        )
    if applied < known:
        _apply(connection, migrations, applied)
    ((instance,),) = connection.execute("select value from holdfast_meta where key = 'instance'")
    return UUID(bytes=instance)


def _applied(connection: Connection) -> int:
    ((exists,),) = connection.execute("select count(*) from sqlite_master where name = 'holdfast_migrations'")
    if not exists:
        return 0
    ((number,),) = connection.execute("select coalesce(max(number), 0) from holdfast_migrations")
    return int(number)


def _apply(connection: Connection, migrations: list[Migration], found: int) -> None:
    connection.wait_for_disk(True)
    try:
        connection.execute("begin immediate")
        for statement in _BOOKKEEPING:
            connection.execute(statement)
        applied = _applied(connection)  # once more under the lock: it may have been done meanwhile
        for migration in migrations:
            if migration.number > applied:
                for statement in migration.statements():
                    connection.execute(statement)
                connection.execute(
                    "insert into holdfast_migrations (number, name) values (?, ?)", (migration.number, migration.name)
                )
        connection.execute("insert or ignore into holdfast_meta values ('instance', ?)", (uuid.uuid4().bytes,))
        connection.execute("commit")
    except sqlite3.Error as error:
        connection.roll_back()
        if found and getattr(error, "sqlite_errorname", "").startswith("SQLITE_READONLY"):
            raise SchemaOutdated(
                f"{connection.path} has schema {found}, this version of Holdfast needs {migrations[-1].number}, "
                "and the file is read-only. Open it once with the right to write, to upgrade it."
            ) from error
        raise translate(error, connection.path) from error
    except BaseException:
        connection.roll_back()
        raise
