"""What one event loop has of the database: its connections, and the tasks that use them.

Whoever calls a verb may be cancelled at any moment. So no caller touches a connection: tasks of the store's own do,
which come to their end whatever becomes of the caller, and leave the connections whole.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.faults import Fault, is_read_only, judge, translate, unknown
from holdfast.stores.postgres.pool import Pool

Result = TypeVar("Result")

PATIENCE = 5.0
"""How long a database that can't be reached is waited for: a restart goes by unnoticed."""
_MOST_TRIES = 20
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5


class Branch:
    """One event loop's connections."""

    def __init__(self, pool: Pool, where: str, on_loss: Callable[[], None]) -> None:
        """`where` is the database's name for messages. `on_loss` is called when a connection has been lost."""
        self.pool = pool
        pool.on_loss = on_loss
        self._where = where
        self._on_loss = on_loss
        self._tasks: set[asyncio.Task[Any]] = set()

    async def own(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end, also if the caller is cancelled meanwhile."""
        return await asyncio.shield(self.start(coroutine))

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run a coroutine to its end, whoever waits for it."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, so that asyncio does not report it when nobody waits any more

    async def run(
        self,
        work: Callable[[Connection], Awaitable[Result]],
        *,
        replay: Callable[[Connection], Awaitable[Result]] | None = None,
        advice: str = "Look before you repeat it.",
    ) -> Result:
        """Do one transaction's work, again if need be.

        If the connection is lost and nobody knows how far it came, `replay` does it again in a way that finds what is
        there already. Without one, or if the database stays away, the outcome is unknown, and `advice` is given.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        pause, tries, doubt = _FIRST_PAUSE, 0, None
        while True:
            tries += 1
            try:
                async with self.pool.connection() as connection:
                    return await (work(connection) if doubt is None or replay is None else replay(connection))
            except Exception as error:
                fault = judge(error)
                if fault is Fault.LOST:
                    self._on_loss()
                    self.pool.drop_free()
                    if doubt is None:
                        deadline = loop.time() + PATIENCE  # however long the silence was, it is asked for again
                    doubt = error
                if is_read_only(error):
                    self.pool.drop_free()  # a server that takes no writes has handed its part to another one
                is_over = tries >= _MOST_TRIES if fault is Fault.AGAIN else loop.time() > deadline
                if fault is Fault.FINAL or is_over or (doubt is not None and replay is None):
                    raise (
                        translate(error, self._where) if doubt is None else unknown(doubt, self._where, advice)
                    ) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def finish(self) -> None:
        """Wait until everything that was begun has come to its end."""
        while self._tasks:
            await asyncio.wait(self._tasks)
