"""A task's transaction, `ctx.tx`: what the task writes, its completion and the jobs it enqueues become true together.

It opens with the first statement, on the event loop where that is executed, and every other use of it goes there: those
of a `def` task through the loop of the synchronous façade. Whoever runs the task ends it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from holdfast.errors import InvalidTransaction
from holdfast.job import NewJob
from holdfast.store import Enqueued, Row, Settled, Settlement, Store, WorkTransaction

Result = TypeVar("Result")

_NOTHING: Final = r"(?>\s|;|--[^\n]*+|/\*(?s:.*?)\*/)*+"
_CONTROL: Final = re.compile(
    rf"{_NOTHING}(?:begin|commit|end|abort|(?:start|prepare)\s+transaction|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)


class Host(Protocol):
    """What the engine is to it."""

    @property
    def store(self) -> Store: ...
    def wait(self, coroutine: Coroutine[Any, Any, Result], instead: str) -> Result: ...


class TaskTransaction:
    """The transaction of one attempt of a job. Statements take `$1`, `$2`, … on every database.

    One statement runs at a time; those that are begun together wait for each other.
    """

    __slots__ = ("_homes", "_host", "_is_over", "_job", "_timeout", "_work", "is_awaited")

    def __init__(self, host: Host, job: UUID, timeout: timedelta) -> None:
        self._host = host
        self._job = job
        self._timeout = timeout
        self._homes: list[tuple[asyncio.AbstractEventLoop, asyncio.Lock]] = []
        """The loop that opened it, and the line of those who use it. The first counts, should two come at once."""
        self._work: WorkTransaction | None = None
        self._is_over = False
        self.is_awaited = False
        """The task waits for it to open, or was stopped while it did: for what others have, not for its own work."""

    # ── for the task ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def aexecute(self, sql: str, /, *args: Any) -> None:
        """Execute a statement. What it raises is the driver's own error."""
        check_statement(sql)
        await self._use(lambda work: work.execute(sql, args))

    async def afetch(self, sql: str, /, *args: Any) -> Sequence[Row]:
        """The rows that a statement answers with, `row[0]` or `row["name"]`."""
        check_statement(sql)
        return await self._use(lambda work: work.fetch(sql, args))

    def execute(self, sql: str, /, *args: Any) -> None:
        """`aexecute` for `def` tasks."""
        self._host.wait(self.aexecute(sql, *args), "ctx.tx.aexecute")

    def fetch(self, sql: str, /, *args: Any) -> Sequence[Row]:
        """`afetch` for `def` tasks."""
        return self._host.wait(self.afetch(sql, *args), "ctx.tx.afetch")

    async def aopen(self) -> Any:
        """Open it, if no statement has, and return the driver's own connection."""

        async def look(work: WorkTransaction) -> Any:
            return work.connection

        return await self._use(look)

    def open(self) -> Any:
        """`aopen` for `def` tasks."""
        return self._host.wait(self.aopen(), "ctx.tx.aopen")

    @property
    def connection(self) -> Any:
        """The driver's own connection. Leave it open, and commit and rollback to the worker."""
        if self._work is None:
            raise InvalidTransaction("ctx.tx has no connection before its first statement. Use `await ctx.tx.aopen()`.")
        self._refuse_if_over()
        return self._work.connection

    # ── for those who enqueue ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """It was used, and its task is not over."""
        return self._work is not None and not self._is_over

    def is_of(self, host: object) -> bool:
        """Whether it is this app's."""
        return self._host is host

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Insert jobs that exist if and only if this commits. A refusal leaves it usable."""
        return await self._use(lambda work: work.enqueue(jobs))

    # ── for those who run the task ───────────────────────────────────────────────────────────────────────────────────

    async def complete(self, settlement: Settlement) -> Settled:
        """Complete the job and commit. Only if it was opened."""
        return await self._end(lambda work: work.complete(settlement))

    async def roll_back(self) -> None:
        """Undo all of it. Only if it was opened."""
        with suppress(RuntimeError):  # its loop is closed, and has rolled it back
            await self._end(lambda work: work.roll_back())

    def dismiss(self) -> None:
        """The task is over and has not opened it: it can't be any more."""
        self._is_over = True

    # ── at home ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _use(self, act: Callable[[WorkTransaction], Awaitable[Result]]) -> Result:
        loop = asyncio.get_running_loop()
        if not self._homes:
            self._homes.append((loop, asyncio.Lock()))
        home, turn = self._homes[0]
        if loop is not home:
            return await _elsewhere(self._use(act), home)
        async with turn:
            self._refuse_if_over()
            if self._work is None:
                self._work = await self._opened()
            return await act(self._work)

    async def _opened(self) -> WorkTransaction:
        self.is_awaited = True
        try:
            work = await self._host.store.open_work(self._job, self._timeout)
        except Exception:
            self.is_awaited = False
            raise
        if self._is_over:
            await work.roll_back()
            self._refuse_if_over()
        self.is_awaited = False
        return work

    async def _end(self, act: Callable[[WorkTransaction], Awaitable[Result]]) -> Result:
        """Whatever is still under way, the task has not waited for it, and nobody waits for its turn here."""
        assert self._work is not None
        self._is_over = True
        home, _ = self._homes[0]
        if asyncio.get_running_loop() is not home:
            return await _elsewhere(self._end(act), home)
        return await act(self._work)

    def _refuse_if_over(self) -> None:
        if self._is_over:
            raise InvalidTransaction(
                "The task is over, and its transaction with it. Await in the task what is to be a part of it."
            )


async def _elsewhere(coroutine: Coroutine[Any, Any, Result], loop: asyncio.AbstractEventLoop) -> Result:
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise
    return await asyncio.wrap_future(future)


def check_statement(sql: object) -> None:
    """Refuse what would end the transaction: half of it would be true."""
    if not isinstance(sql, str):
        raise InvalidTransaction('ctx.tx takes a statement as text, and its values after it: ("… values ($1)", value).')
    if _CONTROL.match(sql):
        raise InvalidTransaction(
            "A task does not begin or end its transaction itself: it is committed when the task returns, and rolled "
            "back when it raises. Leave this statement out; a part can be undone with SAVEPOINT and ROLLBACK TO."
        )
