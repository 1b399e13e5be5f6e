"""Calls that have left the lane, since one of them needs a key that a transaction of a user's is using.

They are halved until it is clear whose key that is. Such a call waits by itself, and others must not feel it: it keeps
no connection while it waits, but tries now and then, and all that try take turns.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import asyncpg

from holdfast.errors import StoreUnavailable
from holdfast.job import NewJob
from holdfast.keys import KeyName
from holdfast.store import Enqueued
from holdfast.stores.postgres.lanes import Call
from holdfast.stores.postgres.request import key_names

JobCall = Call[NewJob, Enqueued]

PATIENCE = 5.0
_TRY = 20
"""Milliseconds to wait for a key at a time."""
_PAUSE = 0.05
_MOST = 100
"""More are told at once that the key is in use."""


class Strays:
    """One event loop's strays. `enqueue` does calls, and may wait for a key so many milliseconds."""

    def __init__(self, enqueue: Callable[[list[JobCall], int], Awaitable[None]]) -> None:
        self._enqueue = enqueue
        self._keys: Counter[KeyName] = Counter()
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._parting = asyncio.Lock()
        self._waiting = asyncio.Lock()

    def need(self, jobs: Sequence[NewJob]) -> bool:
        """Whether somebody waits for a key of these jobs already."""
        return bool(self._keys) and not self._keys.keys().isdisjoint(key_names(jobs))

    def take(self, calls: Sequence[JobCall]) -> None:
        """Take over calls of which one needs a key that is in use."""
        self._start(self._part(calls))

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _part(self, calls: Sequence[JobCall]) -> None:
        """Part those that need the key from those that don't."""
        if len(calls) == 1:
            self._leave_alone(calls[0])
            return
        middle = len(calls) // 2
        for half in (calls[:middle], calls[middle:]):
            rest = [call for call in half if not self._is_known(call)]
            if rest and not await self._try(rest, self._parting):
                await self._part(rest)

    def _is_known(self, call: JobCall) -> bool:
        if not self.need(call.items):
            return False
        self._leave_alone(call)
        return True

    async def _try(self, calls: list[JobCall], turn: asyncio.Lock) -> bool:
        """Whether they were done; otherwise a key is still in use."""
        async with turn:
            try:
                await self._enqueue(calls, _TRY)
            except asyncpg.LockNotAvailableError:
                return False
            except BaseException as error:
                for call in calls:
                    call.fail(error)
                raise
            return True

    def _leave_alone(self, call: JobCall) -> None:
        """It needs the key."""
        if self._number >= _MOST:
            call.fail(_held_up())
        else:
            self._number += 1
            self._keys.update(key_names(call.items))
            self._start(self._wait(call))

    async def _wait(self, call: JobCall) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        try:
            while not await self._try([call], self._waiting):
                if loop.time() > deadline:
                    call.fail(_held_up())
                    return
                await asyncio.sleep(_PAUSE)
        finally:
            self._number -= 1
            self._keys.subtract(key_names(call.items))
            self._keys = +self._keys


def _held_up() -> StoreUnavailable:
    return StoreUnavailable(
        "A transaction that is still open uses the same idempotency or unique key, so it can't be told whether the job "
        "is there. Nothing was written; try again when that transaction has ended."
    )
