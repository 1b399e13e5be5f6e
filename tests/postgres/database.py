"""A database under test, looked at and disturbed from outside: never through the store, never through a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg

PATIENCE = 30.0
"""No wait in these tests lasts longer. It is a limit for hangs, not a measure of speed."""

_OF_STORES = "datname = current_database() and application_name = 'holdfast'"


class Database:
    """The database at `url`. What it is asked is answered over a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._turn = asyncio.Lock()

    async def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """A connection of a user's."""
        return await asyncpg.connect(self.url, server_settings={"application_name": "user"})

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close(timeout=5)

    async def ask(self, question: str, *values: Any) -> list[asyncpg.Record]:
        async with self._turn:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(
                    self.url, server_settings={"application_name": "outside"}, statement_cache_size=0
                )
            return await self._connection.fetch(question, *values)

    async def value(self, question: str, *values: Any) -> Any:
        ((answer,),) = await self.ask(question, *values)
        return answer

    async def execute(self, script: str) -> None:
        """Run statements, several at once if need be."""
        await self.ask("select 1")
        assert self._connection is not None
        async with self._turn:
            await self._connection.execute(script)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ids(self) -> list[UUID]:
        return [row["id"] for row in await self.ask("select id from holdfast.jobs order by id")]

    async def stages(self) -> dict[UUID, int]:
        return {row["id"]: row["stage"] for row in await self.ask("select id, stage from holdfast.jobs")}

    async def stuck(self) -> list[UUID]:
        """Jobs that nobody runs, and nobody could."""
        found = await self.ask(
            """
            select job.id from holdfast.jobs as job
            where stage = 3 and not exists (select from holdfast.workers as w where w.id = worker and w.dead_at is null)
            """
        )
        return [row["id"] for row in found]

    @asynccontextmanager
    async def lock_queue_count(self, queue: str) -> AsyncIterator[None]:
        """As long as this lasts, nobody gets to count this queue."""
        connection = await self.connect()
        try:
            await connection.execute(f"select pg_advisory_lock(1215261794, hashtext('{queue}'))")
            yield
        finally:
            await connection.close()

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def backends(self) -> list[asyncpg.Record]:
        """The connections of stores."""
        return await self.ask(f"select pid, state, query from pg_stat_activity where {_OF_STORES}")

    async def terminate(self, where: str = "true") -> int:
        """End connections of stores, and return how many."""
        ended = await self.ask(
            f"select pg_terminate_backend(pid) from pg_stat_activity where {_OF_STORES} and ({where})"
        )
        return len(ended)

    async def is_quiet(self) -> bool:
        """No store has a transaction open."""
        return not await self.ask(
            f"select from pg_stat_activity where {_OF_STORES} and (state <> 'idle' or xact_start is not null)"
        )

    async def until_waiting(self, count: int = 1) -> None:
        """Until so many connections of stores wait for a lock."""
        sql = f"select count(*) from pg_stat_activity where {_OF_STORES} and wait_event_type = 'Lock'"

        async def holds() -> bool:
            waiting: int = await self.value(sql)
            return waiting >= count

        await until(holds)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look until something holds that is bound to happen."""
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110  # it happens elsewhere
            await asyncio.sleep(0.005)
