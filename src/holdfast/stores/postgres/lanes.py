"""Group commit: what arrives while a batch is under way forms the next one.

There is no timer, so a lone caller waits for nobody, and a crowd shares one round trip and
one wait for the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST_WAITING = 1000
"""Calls of one event loop that may wait in one lane; further ones wait for a place."""
_MOST_WEIGHT = 10_000


class Call(Generic[Item, Answer]):
    """Items that one caller gave, and where the answers go."""

    __slots__ = ("future", "items", "weight")

    def __init__(self, items: Sequence[Item], weight: int, future: asyncio.Future[list[Answer]]) -> None:
        self.items = items
        self.weight = weight
        self.future = future

    def answer(self, answers: list[Answer]) -> None:
        if not self.future.done():  # the caller may have been cancelled; what it asked for happened all the same
            self.future.set_result(answers)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Lane(Generic[Item, Answer]):
    """Calls on their way into the database, on one event loop. `flush` answers each of those it is given."""

    def __init__(
        self,
        flush: Callable[[list[Call[Item, Answer]]], Awaitable[None]],
        weigh: Callable[[Sequence[Item]], int] = len,
    ) -> None:
        self._flush = flush
        self._weigh = weigh
        self._waiting: deque[Call[Item, Answer]] = deque()
        self._places = asyncio.Semaphore(MOST_WAITING)
        self._task: asyncio.Task[None] | None = None

    async def run(self, items: Sequence[Item]) -> list[Answer]:
        """Put items in, and wait for their answers. Cancelling the caller undoes nothing, and disturbs nobody."""
        await self._places.acquire()
        call: Call[Item, Answer] = Call(items, self._weigh(items), asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if not self._is_served:
            # Its first step comes with the next turn of the loop, so what else is put in meanwhile goes along.
            self._task = asyncio.create_task(self._serve())
        return await call.future

    async def _serve(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                try:
                    await self._flush(batch)
                except BaseException as error:
                    for call in batch:
                        call.fail(error)
                    if not isinstance(error, Exception):
                        raise
                finally:
                    for _ in batch:
                        self._places.release()
        finally:
            self._task = None

    def _take(self) -> list[Call[Item, Answer]]:
        batch = [self._waiting.popleft()]
        weight = batch[0].weight
        while self._waiting and weight + self._waiting[0].weight <= _MOST_WEIGHT:
            batch.append(self._waiting.popleft())
            weight += batch[-1].weight
        return batch

    async def drain(self) -> None:
        """Wait until everything that was put in has been answered."""
        while self._task is not None and self._is_served:
            await asyncio.wait([self._task])

    @property
    def _is_served(self) -> bool:
        """A task that its event loop cancels before it has begun ends without a word."""
        return self._task is not None and not self._task.done()
