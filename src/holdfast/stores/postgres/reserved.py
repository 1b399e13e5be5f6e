"""The connection that heartbeats have for themselves, and that holds the session locks of workers.

When the process dies, the server lets go of its locks at once, and others see it. When only the connection is lost, the
workers live: that is written down at once over another connection, before anybody can draw the wrong conclusion.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar
from uuid import UUID

from holdfast.stores.postgres.connection import Connection

Result = TypeVar("Result")

_LONGEST_PAUSE = 2.0
_PATIENCE = 5.0
"""A beat that takes longer goes over another connection: it must be through before the worker is taken for dead."""


class Reserved:
    """One event loop's reserved connection. It is open while it has workers to hold locks for."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection | None]],
        tell: Callable[[list[UUID], bool], Awaitable[None]],
    ) -> None:
        """`connect` gives None behind a pooler, where no lock can be held. `tell` writes down who holds its lock."""
        self._connect = connect
        self._tell = tell
        self._workers: set[UUID] = set()
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def holds(self, worker: UUID) -> bool:
        return worker in self._workers and self._connection is not None

    async def hold(self, worker: UUID) -> bool:
        """Take the lock of a worker that registers; False if that can't be done here and now."""
        async with self._turn:
            self._workers.add(worker)
            if self._connection is None:
                with contextlib.suppress(Exception):
                    await self._open()
            elif not await self._lock(self._connection, [worker]):
                self._workers.discard(worker)
        return self.holds(worker)

    async def let_go(self, worker: UUID) -> None:
        async with self._turn:
            self._workers.discard(worker)
            if self._connection is not None:
                with contextlib.suppress(Exception):
                    await self._connection.execute("select pg_advisory_unlock(holdfast.lock_of($1))", worker)
                if not self._workers:
                    await self._close()

    async def run(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Use the connection; NotReserved if there is none."""
        async with self._turn:
            connection = self._connection
            if connection is None:
                raise NotReserved
            try:
                async with asyncio.timeout(_PATIENCE):
                    return await work(connection)
            except TimeoutError:
                connection.terminate()  # it has become useless, and another one will be opened
                raise

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        async with self._turn:
            self._workers.clear()
            await self._close()

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _open(self) -> None:
        connection = await self._connect()
        if connection is None:
            self._workers.clear()
            return
        loop = asyncio.get_running_loop()
        if not await self._lock(connection, self._workers):
            await connection.close()
            return
        self._connection = connection

        def on_loss(_: object) -> None:
            loop.call_soon(self._on_loss, connection)

        connection.raw.add_termination_listener(on_loss)
        if connection.raw.is_closed():
            self._on_loss(connection)

    async def _lock(self, connection: Connection, workers: Iterable[UUID]) -> bool:
        for worker in workers:
            # A former connection of ours may not have ended yet, on the other side.
            if not await connection.fetch_value("select pg_try_advisory_lock(holdfast.lock_of($1))", worker):
                return False
        return True

    def _on_loss(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            if self._task is None:
                self._task = asyncio.create_task(self._regain())

    async def _regain(self) -> None:
        try:
            with contextlib.suppress(Exception):
                await self._tell(list(self._workers), False)
            pause = 0.05
            while self._workers and self._connection is None:
                with contextlib.suppress(Exception):
                    async with self._turn:
                        await self._open()
                if self._connection is None:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                    pause = min(pause * 2, _LONGEST_PAUSE)
            if self._workers:
                with contextlib.suppress(Exception):
                    await self._tell(list(self._workers), True)
        finally:
            self._task = None


class NotReserved(Exception):
    """There is no reserved connection at the moment."""
