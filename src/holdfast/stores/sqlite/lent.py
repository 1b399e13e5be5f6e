"""The connection that tasks write with, and may have in their own hands: all of sqlite3's, but not the end of it.

Nothing here is called back by SQLite: a thread that waits for SQLite's lock with Python's, while another one has
SQLite's and is called back, would wait for ever.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NoReturn

from holdfast.errors import InvalidTransaction
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.statements import Parameters
from holdfast.transaction import check_statement


class LentCursor(sqlite3.Cursor):
    """Refuses what would begin or end a transaction."""

    def execute(self, sql: str, parameters: Any = (), /) -> LentCursor:
        check_statement(sql)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> LentCursor:
        check_statement(sql)
        return super().executemany(sql, parameters)

    def executescript(self, sql: str, /) -> NoReturn:
        _refuse("executescript")


class LentConnection(sqlite3.Connection):
    """`ctx.tx.connection`: it is committed, rolled back and closed by the worker."""

    def cursor(self, factory: Any = LentCursor) -> Any:
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        return self.cursor().executemany(sql, parameters)

    def commit(self) -> NoReturn:
        _refuse("commit")

    def rollback(self) -> NoReturn:
        _refuse("rollback")

    def close(self) -> NoReturn:
        _refuse("close")

    def executescript(self, sql: str, /) -> NoReturn:
        _refuse("executescript")

    def __enter__(self) -> NoReturn:
        _refuse("with")


def _refuse(what: str) -> NoReturn:
    raise InvalidTransaction(
        f"`{what}` would end the task's transaction, which is committed when the task returns, and rolled back when it "
        "raises. Leave it out; a part can be undone with SAVEPOINT and ROLLBACK TO."
    )


class TaskConnection(Connection):
    """The same connection in our own hands. Foreign keys are enforced, as PostgreSQL does."""

    factory = LentConnection

    def execute(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        return self._run(sql, parameters).fetchall()

    def change(self, sql: str, parameters: Parameters = ()) -> int:
        return self._run(sql, parameters).rowcount

    def _run(self, sql: str, parameters: Parameters) -> sqlite3.Cursor:
        cursor = sqlite3.Connection.cursor(self.raw, sqlite3.Cursor)
        cursor.row_factory = None
        return cursor.execute(sql, parameters)

    def ask(self, sql: str, parameters: Parameters) -> list[sqlite3.Row]:
        """The rows that a statement of the task's answers with."""
        cursor = sqlite3.Connection.cursor(self.raw, sqlite3.Cursor)
        cursor.row_factory = sqlite3.Row
        return cursor.execute(sql, parameters).fetchall()

    def seal(self) -> None:
        """Whoever still has the connection in his hands can't write with it any more, not with anything prepared."""
        self.execute("pragma query_only = on")

    def close(self) -> None:
        sqlite3.Connection.close(self.raw)
