"""The connection that heartbeats have for themselves, and that holds the session locks of workers.

When the process dies, the server lets go of its locks at once, and others see it. When only the connection is lost, the
workers live: that is written down at once over another connection, before anybody can draw the wrong conclusion.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

from holdfast.stores.postgres.connection import Connection

Result = TypeVar("Result")

_LONGEST_PAUSE = 0.5
"""Others who find our locks free don't wait for much longer than that."""
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
        self._locked: set[UUID] = set()
        self._is_lost = False
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def holds(self, worker: UUID) -> bool:
        return worker in self._locked

    @property
    def is_cut_off(self) -> bool:
        """There are workers here, and no connection that could hold their locks: and they live."""
        return bool(self._workers) and self._connection is None

    async def hold(self, worker: UUID) -> bool:
        """Take the lock of a worker that registers. False if that can't be done here and now; then it is done later."""
        self._workers.add(worker)
        await self._try_to_lock()
        self._look_after()
        return self.holds(worker)

    async def let_go(self, worker: UUID) -> None:
        self._workers.discard(worker)
        with contextlib.suppress(Exception):
            async with self._using():
                if worker in self._locked and self._connection is not None:
                    self._locked.discard(worker)
                    await self._connection.execute("select pg_advisory_unlock(holdfast.lock_of($1))", worker)
                if not self._workers:
                    await self._close()

    async def run(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Use the connection; NotReserved if there is none."""
        if self._connection is None:
            raise NotReserved  # whoever is opening one, for however long, is not waited for
        async with self._using():
            if self._connection is None:
                raise NotReserved
            return await work(self._connection)

    async def close(self) -> None:
        self._workers.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        async with self._turn:
            await self._close()

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        """Our turn. A connection that is of no use for so long is given up, and another one is opened."""
        try:
            async with asyncio.timeout(_PATIENCE), self._turn:
                yield
        except TimeoutError:
            if self._connection is not None:
                self._connection.terminate()
            raise
        finally:
            # The driver does not tell its listeners when it is itself that notices, on sending something.
            if self._connection is not None and self._connection.raw.is_closed():
                self._on_loss(self._connection)

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._locked.clear()
        if connection is not None:
            await connection.close()

    # ── locks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _try_to_lock(self) -> None:
        with contextlib.suppress(Exception):
            async with self._using():
                if self._connection is None:
                    await self._open()
                else:
                    locked = await _lock(self._connection, self._workers - self._locked)
                    self._locked |= locked if self._connection is not None else set()

    async def _open(self) -> None:
        connection = await self._connect()
        if connection is None:
            self._workers.clear()
            return
        try:
            locked = await _lock(connection, self._workers)
        except BaseException:
            connection.terminate()
            raise
        loop = asyncio.get_running_loop()

        def on_loss(_: object) -> None:
            loop.call_soon(self._on_loss, connection)

        self._connection, self._locked = connection, locked
        connection.raw.add_termination_listener(on_loss)
        if connection.raw.is_closed():
            self._on_loss(connection)

    def _on_loss(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._locked.clear()
            self._is_lost = True
            self._look_after()

    def _look_after(self) -> None:
        if self._task is None and self._workers - self._locked:
            self._task = asyncio.create_task(self._regain())

    async def _regain(self) -> None:
        try:
            pause = 0.05
            while self._workers - self._locked:
                if self._is_lost:
                    await self._tell_loss()
                await self._try_to_lock()
                if self._workers - self._locked:
                    await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                    pause = min(pause * 2, _LONGEST_PAUSE)
            if self._locked:
                with contextlib.suppress(Exception):
                    await self._tell(list(self._locked), True)
        finally:
            self._task = None
            self._look_after()

    async def _tell_loss(self) -> None:
        """Again later, if nobody hears it now: until then it looks as if we were dead."""
        self._is_lost = False
        try:
            await self._tell(list(self._workers), False)
        except Exception:
            self._is_lost = True


async def _lock(connection: Connection, workers: Iterable[UUID]) -> set[UUID]:
    """Those whose lock was free: a former connection of ours may not have ended yet, on the other side."""
    sql = "select pg_try_advisory_lock(holdfast.lock_of($1))"
    return {worker for worker in list(workers) if await connection.fetch_value(sql, worker)}


class NotReserved(Exception):
    """There is no reserved connection at the moment."""
