"""SQLAlchemy on a task's own transaction: what a session flushes, the job's completion and its jobs are true together.

    @hf.task(bind=True, delivery="transactional")
    async def charge(ctx: Context, order_id: str) -> None:
        async with asession(ctx) as session:
            session.add(Charge(order_id=order_id))

`async def` tasks on PostgreSQL, through asyncpg; `def` tasks on SQLite. A session's commit keeps what it did for the
transaction, and its rollback undoes what it did since; what ends the transaction itself is the end of the task.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final
from uuid import uuid4

import sqlalchemy
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast.context import Context
from holdfast.errors import InvalidTransaction

_raw: Final[ContextVar[Any]] = ContextVar("holdfast_sqlalchemy")
"""The connection that SQLAlchemy is about to take for its own."""
_SAVEPOINT: Final = "holdfast_sqlalchemy"


@asynccontextmanager
async def asession(ctx: Context, **options: Any) -> AsyncIterator[AsyncSession]:
    """A session on `ctx.tx`, in `async def` tasks on PostgreSQL. Leaving the block flushes; `options` are its own."""
    async with aconnection(ctx) as connection, AsyncSession(connection, **options) as session:
        yield session
        await session.commit()


@asynccontextmanager
async def aconnection(ctx: Context) -> AsyncIterator[AsyncConnection]:
    """A connection on `ctx.tx`, in `async def` tasks on PostgreSQL. An error that leaves the block undoes its part."""
    raw = await ctx.tx.aopen()
    if isinstance(raw, sqlite3.Connection):
        raise InvalidTransaction(
            "On SQLite, SQLAlchemy and ctx.tx go together in `def` tasks. Use `session(ctx)` there."
        )
    token = _raw.set(_Kept(raw))
    try:
        connection = await _postgres().connect()
    finally:
        _raw.reset(token)
    try:
        yield connection
        await connection.commit()
    finally:
        await connection.close()


@contextmanager
def session(ctx: Context, **options: Any) -> Iterator[Session]:
    """A session on `ctx.tx`, in `def` tasks on SQLite. Leaving the block flushes; `options` are its own."""
    with connection(ctx) as its_connection, Session(its_connection, **options) as session:
        yield session
        session.commit()


@contextmanager
def connection(ctx: Context) -> Iterator[Connection]:
    """A connection on `ctx.tx`, in `def` tasks on SQLite. An error that leaves the block undoes its part."""
    raw = ctx.tx.open()
    if not isinstance(raw, sqlite3.Connection):
        raise InvalidTransaction(
            "On PostgreSQL, SQLAlchemy and ctx.tx go together in `async def` tasks. Use `asession(ctx)` there."
        )
    token = _raw.set(_Part(raw))
    try:
        connection = _sqlite().connect()
    finally:
        _raw.reset(token)
    with connection:
        yield connection
        connection.commit()


# ── engines, without a connection of their own ───────────────────────────────────────────────────────────────────────


@cache
def _postgres() -> AsyncEngine:
    async def lend() -> Any:
        return _raw.get()

    def connect() -> Any:
        # Names that are used once: behind a pooler, others may have used theirs on the same connection.
        return engine.sync_engine.dialect.loaded_dbapi.connect(
            async_creator_fn=lend,
            prepared_statement_cache_size=0,
            prepared_statement_name_func=lambda: f"__holdfast_{uuid4().hex}__",
        )

    engine = create_async_engine("postgresql+asyncpg://", creator=connect, poolclass=NullPool)
    return engine


@cache
def _sqlite() -> Engine:
    return sqlalchemy.create_engine("sqlite://", creator=_raw.get, poolclass=NullPool)


class _Kept:
    """asyncpg's connection, which is not SQLAlchemy's to close. Inside of ctx.tx its transactions are savepoints."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def close(self, **_: Any) -> None:
        return

    def terminate(self) -> None:
        return


class _Part:
    """sqlite3's connection, with a savepoint for what SQLAlchemy takes for a transaction."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self._is_begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def cursor(self, *args: Any) -> Any:
        if not self._is_begun:
            self._raw.execute(f"savepoint {_SAVEPOINT}")
            self._is_begun = True
        return self._raw.cursor(*args)

    def commit(self) -> None:
        if self._is_begun:
            self._is_begun = False
            self._raw.execute(f"release {_SAVEPOINT}")

    def rollback(self) -> None:
        if self._is_begun:
            self._is_begun = False
            self._raw.execute(f"rollback to {_SAVEPOINT}")
            self._raw.execute(f"release {_SAVEPOINT}")

    def close(self) -> None:
        return
