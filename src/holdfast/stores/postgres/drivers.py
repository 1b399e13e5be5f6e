"""The drivers whose connections a caller can lend.

Nothing here imports one of them: whoever passes a connection has imported its module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

from holdfast.errors import InvalidOption, WrongDatabase
from holdfast.stores.postgres.borrowed import (
    AsyncBorrowed,
    Borrowed,
    SyncBorrowed,
    explained,
    refuse_async,
    refuse_autocommit,
    refuse_closed,
    refuse_failed,
)


def borrow(tx: object) -> Borrowed:
    """Recognise a connection; WrongDatabase if it is not one to PostgreSQL, InvalidOption if it has no transaction."""
    with explained():
        for module, recognise in _DRIVERS:
            if module in sys.modules:
                borrowed = recognise(tx)
                if borrowed is not None:
                    return borrowed
    kind = type(tx)
    raise WrongDatabase(
        f"tx= is a {kind.__module__}.{kind.__qualname__}, but this app's database is PostgreSQL. Pass a connection of "
        "asyncpg or psycopg, a connection or session of SQLAlchemy, or django.db.connection."
    )


def _asyncpg(tx: Any) -> Borrowed | None:
    module = sys.modules["asyncpg"]
    if not isinstance(tx, module.Connection):
        return None
    # A pool lends a new proxy each time, so what is remembered is the connection in it.
    connection = getattr(tx, "_con", tx)
    if connection is None or tx.is_closed():
        refuse_closed()
    if not tx.is_in_transaction():
        refuse_autocommit("`async with connection.transaction():`")
    return AsyncBorrowed(tx.fetchval, connection, ("$1", "$2"))


def _psycopg(tx: Any) -> Borrowed | None:
    module = sys.modules["psycopg"]
    is_async = isinstance(tx, module.AsyncConnection)
    if not is_async and not isinstance(tx, module.Connection):
        return None
    status, statuses = tx.info.transaction_status, module.pq.TransactionStatus
    if tx.closed:
        refuse_closed()
    if status == statuses.INERROR:
        refuse_failed()
    if tx.autocommit and status == statuses.IDLE:
        refuse_autocommit("`with connection.transaction():`")
    # The driver's own kind of cursor: the caller's may write parameters in another way, or make rows of another kind.
    kind = module.AsyncCursor if is_async else module.Cursor

    def ask(sql: str, *values: str) -> Any:
        with kind(tx, row_factory=module.rows.tuple_row) as cursor:
            return cursor.execute(sql, values or None).fetchone()[0]

    async def ask_async(sql: str, *values: str) -> Any:
        async with kind(tx, row_factory=module.rows.tuple_row) as cursor:
            await cursor.execute(sql, values or None)
            return (await cursor.fetchone())[0]

    return AsyncBorrowed(ask_async, tx) if is_async else SyncBorrowed(ask, tx)


def _psycopg2(tx: Any) -> Borrowed | None:
    module = sys.modules["psycopg2.extensions"]
    if not isinstance(tx, module.connection):
        return None
    if tx.closed:
        refuse_closed()
    status = tx.info.transaction_status
    if status == module.TRANSACTION_STATUS_INERROR:
        refuse_failed()
    if tx.autocommit and status == module.TRANSACTION_STATUS_IDLE:
        refuse_autocommit("set autocommit to False, or execute BEGIN")

    def ask(sql: str, *values: str) -> Any:
        with tx.cursor(cursor_factory=module.cursor) as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchone()[0]

    return SyncBorrowed(ask, tx)


# ── SQLAlchemy ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _sqlalchemy(tx: Any) -> Borrowed | None:
    tx = _of_registry(tx)
    extension = sys.modules.get("sqlalchemy.ext.asyncio")
    if extension is not None and isinstance(tx, extension.AsyncSession | extension.AsyncConnection):
        return _Greenlet(tx)
    orm = sys.modules.get("sqlalchemy.orm")
    is_session = orm is not None and isinstance(tx, orm.Session)
    if not is_session and not isinstance(tx, sys.modules["sqlalchemy.engine"].Connection):
        return None
    if (tx.get_bind() if is_session else tx).dialect.is_async:
        raise InvalidOption(
            "tx= is the inner part of an asynchronous session or connection of SQLAlchemy. Pass the AsyncSession or "
            "AsyncConnection itself, and use `await aenqueue(…)`."
        )
    return _sqlalchemy_connection(tx)


def _of_registry(tx: Any) -> Any:
    """The session of this thread or task, if `tx` is a scoped session."""
    registries = (("sqlalchemy.orm", "scoped_session"), ("sqlalchemy.ext.asyncio", "async_scoped_session"))
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in registries)
    return tx() if any(kind is not None and isinstance(tx, kind) for kind in kinds) else tx


def _sqlalchemy_connection(tx: Any) -> Borrowed:
    """A connection, or the one that a session has or now gets."""
    connection = tx if isinstance(tx, sys.modules["sqlalchemy.engine"].Connection) else tx.connection()
    if connection.dialect.name != "postgresql":
        _refuse_database(connection.dialect.name)
    fairy = connection.connection
    if fairy.dbapi_connection.autocommit:
        refuse_autocommit("`with engine.begin() as connection:`, without isolation_level='AUTOCOMMIT'")
    text = sys.modules["sqlalchemy"].text

    def ask(sql: str, *values: str) -> Any:
        named = dict(zip(("jobs", "options"), values, strict=False))
        return connection.execute(text(sql), named).scalar_one()

    return SyncBorrowed(ask, fairy.driver_connection, (":jobs", ":options"))


class _Greenlet:
    """An asynchronous session or connection: SQLAlchemy runs the synchronous way for it, and awaits where it waits."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    def enqueue(self, jobs: str, options: str) -> str:
        refuse_async()

    async def aenqueue(self, jobs: str, options: str) -> str:
        with explained():
            return str(await self._tx.run_sync(lambda inner: _sqlalchemy_connection(inner).enqueue(jobs, options)))


# ── Django ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _django(tx: Any) -> Borrowed | None:
    if isinstance(tx, sys.modules["django.utils.connection"].ConnectionProxy):
        tx = tx._connections[tx._alias]
    backends = sys.modules.get("django.db.backends.base.base")
    if backends is None or not isinstance(tx, backends.BaseDatabaseWrapper):
        return None
    if tx.vendor != "postgresql":
        _refuse_database(tx.vendor)
    if not tx.in_atomic_block and tx.get_autocommit():
        refuse_autocommit("`with transaction.atomic():`")

    def ask(sql: str, *values: str) -> Any:
        with tx.cursor() as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchone()[0]

    # The wrapper stays when it connects anew, perhaps to another database: tests do that.
    return SyncBorrowed(ask, tx.connection)


def _refuse_database(name: str) -> NoReturn:
    raise WrongDatabase(f"tx= is connected to {name}, but this app's database is PostgreSQL. Use the same one.")


_DRIVERS: Final[tuple[tuple[str, Callable[[Any], Borrowed | None]], ...]] = (
    ("asyncpg", _asyncpg),
    ("psycopg", _psycopg),
    ("psycopg2.extensions", _psycopg2),
    ("sqlalchemy.engine", _sqlalchemy),
    ("django.db", _django),
)
"""By the module that is there if anybody can have a connection of this kind."""
