"""Enqueuing inside a transaction of the caller's, on the caller's own sqlite3 connection and in the caller's thread."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidOption, WrongDatabase
from holdfast.job import NewJob
from holdfast.store import Enqueued, Queue
from holdfast.stores.sqlite.connection import translate
from holdfast.stores.sqlite.guests import Guests
from holdfast.stores.sqlite.lent import LentConnection
from holdfast.stores.sqlite.migrate import Migration, bring_up_to_date
from holdfast.stores.sqlite.statements import Executor, Parameters
from holdfast.stores.sqlite.transaction import Transaction


class BorrowedConnection:
    """The caller's connection, untouched by the row and text factories the caller may have set."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._cursor = raw.cursor()
        self._cursor.row_factory = None

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        return self._cursor.execute(sql, parameters).fetchall()

    def change(self, sql: str, parameters: Parameters = ()) -> int:
        return self._cursor.execute(sql, parameters).rowcount


def enqueue_on(
    tx: object,
    jobs: Sequence[NewJob],
    path: Path,
    migrations: Sequence[Migration],
    declared: Mapping[str, Queue],
    now: datetime,
    guests: Guests,
) -> list[Enqueued]:
    """Insert jobs that exist if and only if the caller commits. A refusal undoes only what was done here.

    In a new file the tables are made in the same transaction: another connection could not, while this one writes.
    """
    if not isinstance(tx, sqlite3.Connection):
        raise WrongDatabase(
            f"tx= is a {type(tx).__name__}, but this app's database is the SQLite file {path}. "
            "Pass a sqlite3.Connection to that file."
        )
    try:
        connection = BorrowedConnection(tx)
        _check_database(connection, path)
        if not isinstance(tx, LentConnection):  # a task's own has the turn already
            guests.sign()  # before it may have to wait
        with _transaction(tx, connection), savepoint(connection):
            bring_up_to_date(connection, migrations, path)
            is_careful = any(new.is_repeat for new in jobs)
            transaction = Transaction(connection, now, is_careful=is_careful, declared=declared)
            answers = transaction.enqueue(jobs)
            transaction.finish()
            return answers
    except sqlite3.ProgrammingError as error:
        raise InvalidOption(
            f"tx= can't be used here: {error}. Use an open connection, in the thread it belongs to."
        ) from error
    except sqlite3.Error as error:
        raise translate(error, path) from error


@contextmanager
def savepoint(connection: Executor) -> Iterator[None]:
    """What fails undoes only what was done here."""
    connection.execute("savepoint holdfast")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors SQLite has rolled back everything by itself
            connection.execute("rollback to holdfast")
            connection.execute("release holdfast")
        raise
    connection.execute("release holdfast")


def _check_database(connection: BorrowedConnection, path: Path) -> None:
    """It is ours if it is the very same file."""
    main = connection.execute("pragma database_list")[0][2]
    try:
        is_ours = os.path.samefile(main if isinstance(main, str) else bytes(main), path)
    except (OSError, TypeError):
        is_ours = False
    if not is_ours:
        raise WrongDatabase(
            f"tx= is a connection to another database than Holdfast's own, {path}. Pass one to that file."
        )


@contextmanager
def _transaction(raw: sqlite3.Connection, connection: BorrowedConnection) -> Iterator[None]:
    """The caller's transaction, begun if it was not. A savepoint outside of one would commit at its release."""
    if raw.in_transaction:
        yield
        return
    if raw.isolation_level is None or getattr(raw, "autocommit", None) is True:
        raise InvalidOption("tx= is in autocommit mode with no transaction open. Execute BEGIN IMMEDIATE on it first.")
    connection.execute("begin immediate")
    try:
        yield
    except BaseException:
        raw.rollback()  # or the caller, who began nothing, would hold the write lock without knowing
        raise
