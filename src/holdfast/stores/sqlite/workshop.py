"""The transactions of a process's tasks: they stand in line for one thread, which takes its turn at the file for each.

The thread that claims and settles is another one, and takes turns with this one as other processes do: it waits for one
transaction at most, not for the line.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty
from typing import Any, Final, Generic, TypeVar

from holdfast import native
from holdfast.errors import HoldfastError, InvalidTransaction, StoreUnavailable, TransactionLost
from holdfast.job import NewJob
from holdfast.line import Line
from holdfast.store import Enqueued, Settled, Settlement, check_batch
from holdfast.stores.sqlite.desk import Bench, Desk

Result = TypeVar("Result")

_TOLERANCE: Final = 0.01
"""A loop may call a little early, by its own clock."""


class Workshop:
    """Opens transactions, in a thread of its own, which starts on first use."""

    def __init__(self, make_bench: Callable[[], Bench]) -> None:
        self._make_bench = make_bench
        self._lock = native.make_lock()
        self._line: Line[SqliteWork] | None = None

    async def open(self, timeout: timedelta) -> SqliteWork:
        """Wait for a turn at the file, for as long as the job may run, and begin. Whoever is cancelled leaves the line.

        A task that finds many in the line has done nothing wrong: what mostly ends its wait is its own soft timeout.
        """
        work = SqliteWork(asyncio.get_running_loop())
        self._put(work)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await work.opened
        except BaseException as error:
            work.give_up()
            if not isinstance(error, TimeoutError):
                raise
            raise StoreUnavailable(
                f"The tasks of this process have kept the database busy for {timeout.total_seconds():g} s with their "
                "transactions. Nothing was written; try again, do what is slow before the first statement, or run "
                "fewer jobs at once."
            ) from None
        work.set_alarm()
        return work

    def _put(self, work: SqliteWork) -> None:
        with self._lock:
            if self._line is None:
                line: Line[SqliteWork] = Line()
                bench = self._make_bench()
                native.start_thread(lambda: _serve(line, bench))
                self._line = line
            self._line.put(work)

    async def close(self) -> None:
        """Let what is open come to its end, close the file, and let the thread end."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            last = SqliteWork(asyncio.get_running_loop(), is_last=True)
            line.put(last)
            await last.opened

    def abandon(self) -> None:
        """In a forked child: the thread is gone, and its connection is the parent's."""
        self._line = None
        self._lock = native.make_lock()


def _serve(line: Line[SqliteWork], bench: Bench) -> None:
    is_loop_doubtful = False
    while not (work := line.get()).is_last:
        try:
            if is_loop_doubtful and work.is_wanted():
                _expect_answer(work, bench.limit)
                is_loop_doubtful = False
            bench.perform(work)
        except BaseException as error:
            work.leave(error)
        else:
            work.leave()
            is_loop_doubtful |= work.is_lost
    bench.close()
    work.answer_opened()
    line.rest()


def _expect_answer(work: SqliteWork, patience: float) -> None:
    """One task had the lock for too long. If it has blocked the event loop, the next would do nothing with it, either.

    Each that waits in line would have the lock for its whole time, one after the other, and all who write wait for it.
    """
    if not work.is_answered(patience):
        raise TransactionLost(
            f"Something has blocked the event loop of this task for more than {patience:g} s, so its transaction was "
            "not opened. Nothing of it was written; let the error end the task, to be retried, and do what blocks in a "
            "thread."
        )


class Request(Generic[Result]):
    """Something that a task wants done in its transaction."""

    __slots__ = ("act", "future")

    def __init__(self, act: Callable[[Desk], Result], future: asyncio.Future[Result]) -> None:
        self.act = act
        self.future = future


class SqliteWork:
    """One task's transaction. The event loop asks, and the thread does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_last: bool = False) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self.is_last = is_last
        """It opens nothing: after it, the thread ends."""
        self._loop = loop
        self._requests: native.Channel[Request[Any]] = native.Channel()
        self._lock = native.make_lock()
        self._desk: Desk | None = None
        self._error: BaseException | None = None
        """Why nothing can be asked for any more."""
        self._is_ending = False
        """It is being committed, and must not be interrupted any more."""

    # ── the task's side ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def connection(self) -> sqlite3.Connection:
        with self._lock:
            if self._error is not None or self._desk is None:
                raise self._refusal()
            self._desk.is_lent = True
            return self._desk.connection.raw

    async def execute(self, sql: str, args: Sequence[Any]) -> None:
        await self._ask(lambda desk: desk.fetch(sql, args))

    async def fetch(self, sql: str, args: Sequence[Any]) -> list[sqlite3.Row]:
        return await self._ask(lambda desk: desk.fetch(sql, args))

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        check_batch(len(jobs))
        return await self._ask(lambda desk: desk.enqueue(jobs))

    async def complete(self, settlement: Settlement) -> Settled:
        return await self._ask(lambda desk: self._complete(desk, settlement))

    async def roll_back(self) -> None:
        self._interrupt()  # whatever is under way, nobody waits for it any more
        try:
            await self._ask(Desk.roll_back)
        except Exception:
            return  # it is over

    async def _ask(self, act: Callable[[Desk], Result]) -> Result:
        request: Request[Result] = Request(act, self._loop.create_future())
        with self._lock:
            if self._error is not None:
                raise self._refusal()
            self._requests.put(request)
        return await request.future

    def _refusal(self) -> BaseException:
        return self._error or InvalidTransaction("The transaction is not open. Await its first statement.")

    def set_alarm(self) -> None:
        """A statement that is under way when the time is over would not end by itself."""
        if self._desk is not None:
            self._loop.call_later(self._desk.seconds_left + _TOLERANCE, self._interrupt)

    def _interrupt(self) -> None:
        with self._lock:  # the thread does not go on to another transaction meanwhile
            if self._error is None and self._desk is not None and not self._is_ending:
                self._desk.connection.raw.interrupt()

    def give_up(self) -> None:
        """Nobody wants it any more. If it has been opened meanwhile, it ends at once."""
        with self._lock:
            if self._error is None:
                self._requests.put(Request(Desk.roll_back, self._loop.create_future()))
                self._error = InvalidTransaction("The transaction was given up before it was opened. Begin anew.")

    # ── the thread's side ────────────────────────────────────────────────────────────────────────────────────────────

    def is_wanted(self) -> bool:
        return self._error is None

    @property
    def is_lost(self) -> bool:
        """It had to be ended before its time."""
        return self._desk is not None and self._desk.reason is not None

    def is_answered(self, patience: float) -> bool:
        """Whether its event loop does what it is asked to."""
        silence = native.make_lock()
        silence.acquire()
        self._call(silence.release)
        return silence.acquire(timeout=patience)

    def refuse(self, error: HoldfastError) -> None:
        self.leave(error)

    def serve(self, desk: Desk) -> None:
        self._desk = desk
        self.answer_opened()
        while not desk.is_over:
            try:
                request = self._requests.get(timeout=desk.seconds_left)
            except Empty:
                desk.expire()
            else:
                self._do(request, desk)

    def _complete(self, desk: Desk, settlement: Settlement) -> Settled:
        with self._lock:
            self._is_ending = True
        return desk.complete(settlement)

    def _do(self, request: Request[Any], desk: Desk) -> None:
        result, error = None, None
        try:
            result = request.act(desk)
        except BaseException as raised:
            error = raised
        self._call(_resolve, request.future, result, error)

    def leave(self, error: BaseException | None = None) -> None:
        """The thread has done with it: whatever is asked for from now on, or was and has not been done, is refused."""
        reason = error or (self._desk.reason if self._desk is not None else None)
        with self._lock:
            self._error = (
                reason or self._error or InvalidTransaction("The transaction is over. Begin anew in a new job.")
            )
            late: list[Request[Any]] = []
            while not self._requests.empty():
                late.append(self._requests.get())
        for request in late:
            self._call(_resolve, request.future, None, self._error)
        self._call(_resolve, self.opened, None, self._error)

    def answer_opened(self) -> None:
        self._call(_resolve, self.opened, None, None)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return  # the loop is closed: nobody waits there any more


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # nobody waits any more
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # seen, so that asyncio does not report it when nobody waits any more
