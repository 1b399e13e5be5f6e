"""Numbered migrations, applied by whoever comes first. The others wait for their turn and find them done."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from holdfast.errors import SchemaOutdated, SchemaTooNew
from holdfast.stores.sqlite.connection import Connection, translate
from holdfast.stores.sqlite.statements import Executor

BOOKKEEPING = """create table if not exists holdfast_migrations (
    number integer primary key, name text not null, applied_at text not null default current_timestamp
)"""
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


def migrate(connection: Connection, migrations: Sequence[Migration]) -> None:
    """Bring the file to the newest of these migrations, whole or not at all.

    The caller holds the turn, so that two processes that open a new file don't get in each other's way.
    """
    found = applied(connection)
    if found == migrations[-1].number:
        return
    connection.wait_for_disk(True)
    try:
        connection.execute("begin immediate")
        bring_up_to_date(connection, migrations, connection.path)
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


def bring_up_to_date(connection: Executor, migrations: Sequence[Migration], path: Path) -> None:
    """Apply the migrations that are missing, in the transaction that is open."""
    found, known = applied(connection), migrations[-1].number
    if found > known:
        raise SchemaTooNew(
            f"{path} has schema {found}, and this version of Holdfast knows {known}. "
            "Upgrade the holdfast package in this process."
        )
    if found == known:
        return
    connection.execute(BOOKKEEPING)
    for migration in migrations:
        if migration.number > found:
            for statement in migration.statements():
                connection.execute(statement)
            connection.execute(
                "insert into holdfast_migrations (number, name) values (?, ?)", (migration.number, migration.name)
            )


def applied(connection: Executor) -> int:
    """The number of the last migration that was applied; 0 if Holdfast has nothing here yet."""
    ((exists,),) = connection.execute("select count(*) from sqlite_master where name = 'holdfast_migrations'")
    if not exists:
        return 0
    ((number,),) = connection.execute("select coalesce(max(number), 0) from holdfast_migrations")
    return int(number)
