"""The connections of one event loop: a few, opened when they are needed, handed from one task to the next.

asyncpg's own pool asks the server to forget everything each time that a connection is given back, which
would double the round trips. Here only tasks of the store's own use them, and they leave nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from holdfast.errors import StoreUnavailable
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.faults import NoConnection


class Pool:
    """At most `size` connections. Whoever finds none free waits, and gives up after `patience` seconds, if any."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        size: int,
        patience: float | None = 10.0,
    ) -> None:
        self._connect = connect
        self._size = size
        self._patience = patience
        self._free: list[Connection] = []
        self._places = asyncio.Semaphore(size)
        self._all: set[Connection] = set()
        self._is_closed = False
        self.on_loss: Callable[[], None] = lambda: None
        """Called when a connection is found to have been lost while nobody used it."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        await self._take_place()
        try:
            connection = self._take_free() or await self._open()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._places.release()

    async def _take_place(self) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._places.acquire()
        except TimeoutError:
            raise NoConnection from StoreUnavailable(
                f"All {self._size} connections have been busy for {self._patience:g} s. Nothing was written; "
                "try again, or allow more with pool_size= in the URL."
            )

    def _take_free(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_usable:
                return connection
            self._drop(connection)
            self.on_loss()
        return None

    async def _open(self) -> Connection:
        connection = await self._connect()
        self._all.add(connection)
        return connection

    def _give_back(self, connection: Connection) -> None:
        if connection.is_usable and not self._is_closed:
            self._free.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.terminate()
        self._all.discard(connection)

    def drop_free(self) -> None:
        """The server may be another one by now: what is not in use is not used again."""
        while self._free:
            self._drop(self._free.pop())

    async def close(self) -> None:
        """Close what is open. Whoever still comes, since he had come this far, gets a connection that is not kept."""
        self._is_closed = True
        everything, self._all, self._free = self._all, set(), []
        try:
            await asyncio.gather(*(connection.close() for connection in everything))
        finally:
            for connection in everything:
                connection.terminate()  # does nothing, unless we were cancelled
