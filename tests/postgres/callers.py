"""Programs with a transaction of their own: the same steps with every driver."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import asyncpg
import psycopg
import psycopg2  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast import Holdfast, Job
from holdfast.task import Call, Task


class Caller(ABC):
    """A connection, and what its user does with it. `tx` is what is given to Holdfast."""

    tx: Any
    is_async = False

    @abstractmethod
    def __init__(self, url: str) -> None:
        """Connect. No transaction is open yet."""

    @abstractmethod
    def begin(self) -> None: ...
    @abstractmethod
    def execute(self, sql: str) -> None: ...
    @abstractmethod
    def commit(self) -> None: ...
    @abstractmethod
    def rollback(self) -> None: ...
    @abstractmethod
    def close(self) -> None: ...

    def leave_transactions(self) -> bool:
        """Go on without transactions, as far as this kind of connection can."""
        return False

    def note(self, text: str) -> None:
        """A write of the user's own."""
        self.execute(f"insert into notes values ('{text}')")

    def enqueue(self, task: Task[Any, Any], *args: Any, **options: Any) -> Job[Any]:
        return task.options(tx=self.tx, **options).enqueue(*args)

    def enqueue_many(self, hf: Holdfast, calls: Iterable[Call[Any]]) -> list[Job[Any]]:
        return hf.enqueue_many(calls, tx=self.tx)

    def send(self, hf: Holdfast, task: str, args: Mapping[str, Any], **options: Any) -> Job[Any]:
        return hf.send(task, args, tx=self.tx, **options)


class AsyncCaller(Caller):
    """The same for drivers that are awaited, on an event loop of their own."""

    is_async = True

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.run(self.aconnect(url))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    @abstractmethod
    async def aconnect(self, url: str) -> None: ...
    @abstractmethod
    async def abegin(self) -> None: ...
    @abstractmethod
    async def aexecute(self, sql: str) -> None: ...
    @abstractmethod
    async def acommit(self) -> None: ...
    @abstractmethod
    async def arollback(self) -> None: ...
    @abstractmethod
    async def aclose(self) -> None: ...

    def begin(self) -> None:
        self.run(self.abegin())

    def execute(self, sql: str) -> None:
        self.run(self.aexecute(sql))

    def commit(self) -> None:
        self.run(self.acommit())

    def rollback(self) -> None:
        self.run(self.arollback())

    def close(self) -> None:
        self.run(self.aclose())
        self._runner.close()

    def enqueue(self, task: Task[Any, Any], *args: Any, **options: Any) -> Job[Any]:
        job: Job[Any] = self.run(task.options(tx=self.tx, **options).aenqueue(*args))
        return job

    def enqueue_many(self, hf: Holdfast, calls: Iterable[Call[Any]]) -> list[Job[Any]]:
        jobs: list[Job[Any]] = self.run(hf.aenqueue_many(calls, tx=self.tx))
        return jobs

    def send(self, hf: Holdfast, task: str, args: Mapping[str, Any], **options: Any) -> Job[Any]:
        job: Job[Any] = self.run(hf.asend(task, args, tx=self.tx, **options))
        return job


# ── drivers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Psycopg(Caller):
    tx: Any

    def __init__(self, url: str, **options: Any) -> None:
        self.tx = psycopg.connect(url, **options)

    def begin(self) -> None:
        """It begins by itself."""

    def execute(self, sql: str) -> None:
        self.tx.execute(sql)

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()

    def leave_transactions(self) -> bool:
        self.tx.autocommit = True
        return True


class Psycopg2(Psycopg):
    def __init__(self, url: str, **options: Any) -> None:
        self.tx = psycopg2.connect(url, **options)

    def execute(self, sql: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)


class PsycopgAsync(AsyncCaller):
    async def aconnect(self, url: str) -> None:
        self.tx = await psycopg.AsyncConnection.connect(url)

    async def abegin(self) -> None:
        """It begins by itself."""

    async def aexecute(self, sql: str) -> None:
        await self.tx.execute(sql)

    async def acommit(self) -> None:
        await self.tx.commit()

    async def arollback(self) -> None:
        await self.tx.rollback()

    async def aclose(self) -> None:
        await self.tx.close()

    def leave_transactions(self) -> bool:
        self.run(self.tx.set_autocommit(True))
        return True


class Asyncpg(AsyncCaller):
    _transaction: Any = None

    async def aconnect(self, url: str) -> None:
        self.tx = await asyncpg.connect(url)

    async def abegin(self) -> None:
        self._transaction = self.tx.transaction()
        await self._transaction.start()

    async def aexecute(self, sql: str) -> None:
        await self.tx.execute(sql)

    async def acommit(self) -> None:
        await self._transaction.commit()

    async def arollback(self) -> None:
        await self._transaction.rollback()

    async def aclose(self) -> None:
        await self.tx.close()

    def leave_transactions(self) -> bool:
        return True


class AsyncpgPool(Asyncpg):
    async def aconnect(self, url: str) -> None:
        self._pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        self.tx = await self._pool.acquire()

    async def aclose(self) -> None:
        await self._pool.release(self.tx)
        await self._pool.close()


# ── SQLAlchemy ───────────────────────────────────────────────────────────────────────────────────────────────────────


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql:", f"postgresql+{driver}:", 1)


class SqlalchemySession(Caller):
    driver = "psycopg"

    def __init__(self, url: str, **options: Any) -> None:
        self.engine = sqlalchemy.create_engine(sqlalchemy_url(url, self.driver), **options)
        self.tx = self.start()

    def start(self) -> Any:
        return Session(self.engine)

    def begin(self) -> None:
        """It begins by itself."""

    def execute(self, sql: str) -> None:
        self.tx.execute(sqlalchemy.text(sql))

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()
        self.engine.dispose()

    def leave_transactions(self) -> bool:
        self.tx.close()
        self.engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self.tx = self.start()
        return True


class SqlalchemyScopedSession(SqlalchemySession):
    def start(self) -> Any:
        return scoped_session(sessionmaker(self.engine))


class SqlalchemyConnection(SqlalchemySession):
    def start(self) -> Any:
        return self.engine.connect()


class SqlalchemySessionPsycopg2(SqlalchemySession):
    driver = "psycopg2"


class SqlalchemyAsyncSession(AsyncCaller):
    driver = "asyncpg"
    engine: AsyncEngine

    async def aconnect(self, url: str) -> None:
        self.engine = create_async_engine(sqlalchemy_url(url, self.driver))
        self.tx = await self.astart()

    async def astart(self) -> AsyncSession | AsyncConnection:
        return AsyncSession(self.engine)

    async def abegin(self) -> None:
        """It begins by itself."""

    async def aexecute(self, sql: str) -> None:
        await self.tx.execute(sqlalchemy.text(sql))

    async def acommit(self) -> None:
        await self.tx.commit()

    async def arollback(self) -> None:
        await self.tx.rollback()

    async def aclose(self) -> None:
        await self.tx.close()
        await self.engine.dispose()

    def leave_transactions(self) -> bool:
        async def start_anew() -> None:
            await self.tx.close()
            self.engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            self.tx = await self.astart()

        self.run(start_anew())
        return True


class SqlalchemyAsyncSessionPsycopg(SqlalchemyAsyncSession):
    driver = "psycopg"


class SqlalchemyAsyncConnection(SqlalchemyAsyncSession):
    async def astart(self) -> AsyncSession | AsyncConnection:
        return await self.engine.connect()


class SqlalchemyAsyncConnectionPsycopg(SqlalchemyAsyncConnection):
    driver = "psycopg"


# ── Django ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def configure_django(**databases: dict[str, Any]) -> None:
    """Settings without a project. Those of an earlier test are replaced."""
    import django  # type: ignore[import-untyped]
    from django.conf import settings  # type: ignore[import-untyped]
    from django.db import NotSupportedError, OperationalError, connections  # type: ignore[import-untyped]

    if not settings.configured:
        settings.configure()
        django.setup()
    for alias in list(connections.settings):
        connections[alias].close()
        del connections[alias]
    connections.settings = connections.configure_settings({"default": {}} | databases)
    for alias in databases:
        with suppress(OperationalError):
            try:
                connections[alias].ensure_connection()
            except NotSupportedError as error:
                pytest.skip(f"NOT TESTED: Django says: {error}")
            connections[alias].close()


def django_database(url: str, **options: Any) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
        "OPTIONS": options,
    }


class Django(Caller):
    _atomic: Any = None

    def __init__(self, url: str, **options: Any) -> None:
        configure_django(default=django_database(url, **options))
        from django.db import connection

        self.tx = connection

    def begin(self) -> None:
        from django.db import transaction

        self._atomic = transaction.atomic()
        self._atomic.__enter__()

    def execute(self, sql: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        self.tx.needs_rollback = True
        self._atomic.__exit__(None, None, None)

    def close(self) -> None:
        self.tx.close()

    def leave_transactions(self) -> bool:
        return True


CALLERS: Final[tuple[type[Caller], ...]] = (
    Asyncpg,
    AsyncpgPool,
    Psycopg,
    PsycopgAsync,
    Psycopg2,
    SqlalchemySession,
    SqlalchemySessionPsycopg2,
    SqlalchemyScopedSession,
    SqlalchemyConnection,
    SqlalchemyAsyncSession,
    SqlalchemyAsyncSessionPsycopg,
    SqlalchemyAsyncConnection,
    SqlalchemyAsyncConnectionPsycopg,
    Django,
)
