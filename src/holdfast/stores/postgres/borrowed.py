"""Enqueuing inside a transaction of the caller's, on the caller's own connection, whatever driver that is.

Nothing here imports a driver: who passes a connection has imported its module.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

from holdfast.errors import HoldfastError, InvalidOption, StoreError, StoreUnavailable, WrongDatabase

_PROBE: Final = "select to_regprocedure('holdfast.enqueue(text, text)') is not null"
_ENQUEUE: Final = "select holdfast.enqueue({0}::text, {1}::text)"

SyncCall = Callable[..., Any]
"""Runs a statement with its values, in the caller's thread, and returns the one value it answers with."""
AsyncCall = Callable[..., Awaitable[Any]]

_known: weakref.WeakSet[Any] = weakref.WeakSet()
"""Connections that were seen to have Holdfast's functions: calling one that is not there would end the transaction."""


class Borrowed:
    """A connection of the caller's. `place` is how its driver writes the place of a value."""

    def __init__(self, call: SyncCall | AsyncCall, identity: Any, *, is_async: bool, places: tuple[str, str]) -> None:
        self._call = call
        self._identity = identity
        self.is_async = is_async
        self._enqueue = _ENQUEUE.format(*places)

    def enqueue(self, jobs: str, options: str) -> str:
        if self.is_async:
            raise InvalidOption("tx= is an asynchronous connection. Use `await aenqueue(…)` with it.")
        try:
            if self._identity not in _known:
                self._see(self._call(_PROBE))
            return str(self._call(self._enqueue, jobs, options))
        except Exception as error:
            _explain(error)

    async def aenqueue(self, jobs: str, options: str) -> str:
        if not self.is_async:
            return self.enqueue(jobs, options)
        try:
            if self._identity not in _known:
                self._see(await self._call(_PROBE))
            return str(await self._call(self._enqueue, jobs, options))
        except Exception as error:
            _explain(error)

    def _see(self, is_there: object) -> None:
        if not is_there:
            raise WrongDatabase
        _known.add(self._identity)


def borrow(tx: object) -> Borrowed:
    """Recognise a connection; WrongDatabase if it is not one to PostgreSQL."""
    for module, recognise in _DRIVERS:
        if module in sys.modules:
            borrowed = recognise(tx, sys.modules[module])
            if borrowed is not None:
                return borrowed
    raise WrongDatabase(
        f"tx= is a {type(tx).__name__}, but this app's database is PostgreSQL. Pass a connection of asyncpg or "
        "psycopg, a connection or session of SQLAlchemy, or django.db.connection."
    )


# ── drivers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _asyncpg(tx: Any, module: Any) -> Borrowed | None:
    if not isinstance(tx, module.Connection | module.pool.PoolConnectionProxy):
        return None
    if not tx.is_in_transaction():
        _refuse_autocommit("`async with connection.transaction():`")
    return Borrowed(tx.fetchval, tx, is_async=True, places=("$1", "$2"))


def _psycopg(tx: Any, module: Any) -> Borrowed | None:
    is_async = isinstance(tx, module.AsyncConnection)
    if not is_async and not isinstance(tx, module.Connection):
        return None
    if tx.autocommit and tx.info.transaction_status == module.pq.TransactionStatus.IDLE:
        _refuse_autocommit("`with connection.transaction():`")

    def call(sql: str, *values: str) -> Any:
        with tx.cursor(row_factory=module.rows.tuple_row) as cursor:
            return cursor.execute(sql, values or None).fetchone()[0]

    async def acall(sql: str, *values: str) -> Any:
        async with tx.cursor(row_factory=module.rows.tuple_row) as cursor:
            await cursor.execute(sql, values or None)
            return (await cursor.fetchone())[0]

    return Borrowed(acall if is_async else call, tx, is_async=is_async, places=("%s", "%s"))


def _psycopg2(tx: Any, module: Any) -> Borrowed | None:
    if not isinstance(tx, module.extensions.connection):
        return None
    if tx.autocommit and tx.info.transaction_status == module.extensions.TRANSACTION_STATUS_IDLE:
        _refuse_autocommit("BEGIN on it")

    def call(sql: str, *values: str) -> Any:
        with tx.cursor(cursor_factory=module.extensions.cursor) as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchone()[0]

    return Borrowed(call, tx, is_async=False, places=("%s", "%s"))


def _sqlalchemy(tx: Any, module: Any) -> Borrowed | None:
    orm, extension = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.ext.asyncio")
    if orm is not None and isinstance(tx, orm.scoped_session):
        tx = tx()
    if extension is not None and isinstance(tx, extension.async_scoped_session):
        tx = tx()
    if orm is not None and isinstance(tx, orm.Session):
        bound = tx.connection()
    elif isinstance(tx, module.engine.Connection):
        bound = tx
    elif extension is not None and isinstance(tx, extension.AsyncSession | extension.AsyncConnection):
        return _sqlalchemy_async(tx, module)
    else:
        return None
    _check_sqlalchemy(bound)

    def call(sql: str, *values: str) -> Any:
        named = dict(zip(("jobs", "options"), values, strict=False))
        return bound.execute(module.text(sql), named).scalar_one()

    return Borrowed(call, bound.connection.dbapi_connection, is_async=False, places=(":jobs", ":options"))


def _sqlalchemy_async(tx: Any, module: Any) -> Borrowed:
    extension = sys.modules["sqlalchemy.ext.asyncio"]
    probed: list[Any] = []

    async def call(sql: str, *values: str) -> Any:
        connection = await tx.connection() if isinstance(tx, extension.AsyncSession) else tx
        if not probed:
            await connection.run_sync(_check_sqlalchemy)
            probed.append(connection)
        named = dict(zip(("jobs", "options"), values, strict=False))
        return (await connection.execute(module.text(sql), named)).scalar_one()

    return Borrowed(call, tx, is_async=True, places=(":jobs", ":options"))


def _check_sqlalchemy(connection: Any) -> None:
    if connection.dialect.name != "postgresql":
        raise WrongDatabase(
            f"tx= is connected to {connection.dialect.name}, but this app's database is PostgreSQL. Use the same one."
        )
    if connection.get_isolation_level() == "AUTOCOMMIT":
        _refuse_autocommit("a transaction, without isolation_level='AUTOCOMMIT'")


def _django(tx: Any, module: Any) -> Borrowed | None:
    if isinstance(tx, module.utils.connection.ConnectionProxy):
        tx = tx._connections[tx._alias]  # its methods work through the proxy, but not isinstance and weak references
    if not isinstance(tx, module.db.backends.base.base.BaseDatabaseWrapper):
        return None
    if tx.vendor != "postgresql":
        raise WrongDatabase(
            f"tx= is connected to {tx.vendor}, but this app's database is PostgreSQL. Use the same one."
        )
    if not tx.in_atomic_block and tx.get_autocommit():
        _refuse_autocommit("`with transaction.atomic():`")

    def call(sql: str, *values: str) -> Any:
        with tx.cursor() as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchone()[0]

    return Borrowed(call, tx, is_async=False, places=("%s", "%s"))


_DRIVERS: Final[tuple[tuple[str, Callable[[Any, Any], Borrowed | None]], ...]] = (
    ("asyncpg", _asyncpg),
    ("psycopg", _psycopg),
    ("psycopg2", _psycopg2),
    ("sqlalchemy", _sqlalchemy),
    ("django", _django),
)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _refuse_autocommit(instead: str) -> NoReturn:
    raise InvalidOption(f"tx= has no transaction open, so there is nothing to join. Open one first: {instead}.")


def _explain(error: Exception) -> NoReturn:
    """The caller's driver failed. The transaction is the caller's to roll back."""
    if isinstance(error, HoldfastError):
        raise error
    original = getattr(error, "orig", None) or error.__cause__ or error
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None) or getattr(error, "sqlstate", None)
    if state == "25P02":
        raise InvalidOption("tx= is a transaction that has failed already. Roll it back, and begin anew.") from error
    if state is None or state.startswith(("08", "40", "53", "55", "57")):
        raise StoreUnavailable(
            f"The enqueue failed on the connection given as tx= ({error}). Roll the transaction back, and try it again."
        ) from error
    raise StoreError(f"The enqueue failed on the connection given as tx= ({error}). Roll it back.") from error
