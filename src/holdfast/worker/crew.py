"""The threads that run `def` tasks. A task in one of them can be reached with an exception, at its next line."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from holdfast.context import SoftTimeout
from holdfast.outcome import Snooze

log = logging.getLogger("holdfast.worker")

_set_exception: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)

Answer = Callable[[Any, BaseException | None], None]

_NO_MEMORY_FOR: Final = 0.05
"""Seconds after which something for which there was no memory is worth another try."""
_NO_THREAD_FOR: Final = 5.0
"""Seconds after which a call for which no thread could be started is worth another try."""


class _Swept(BaseException):
    """Appears in place of what was thrown too late."""


def nothing() -> None:
    pass


class Work:
    """A call that a thread is to make, and where to say what came of it: on the event loop.

    `ended` is called before that, by the thread itself, unless nobody waits any more.
    """

    __slots__ = (
        "answer",
        "call",
        "context",
        "early",
        "ended",
        "error",
        "has_returned",
        "is_lost",
        "member",
        "soft_at",
        "value",
    )

    def __init__(
        self,
        call: Callable[[], Any],
        context: contextvars.Context,
        answer: Answer,
        soft_at: float,
        ended: Callable[[], None] = nothing,
    ) -> None:
        self.soft_at = soft_at
        self.call = call
        self.context = context
        self.answer = answer
        self.ended = ended
        self.value: Any = None
        self.has_returned = False
        self.is_lost = False
        """Nobody waits for it any more."""
        self.error: BaseException | None = None
        self.member: Member | None = None
        self.early: BaseException | None = None
        """Thrown before it began."""

    def throw(self, error: BaseException) -> None:
        """Make an exception of this class appear in the call. Nothing if it is over."""
        self.early = error
        member = self.member
        if member is not None:
            member.throw(self, error)


class Crew:
    """As many threads as there was ever work for at once. They live until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._done: deque[Work] = deque()
        self._is_told = False
        self._lock = threading.Lock()
        self._busy = 0
        self._members: set[Member] = set()
        self._prompter = Prompter()
        self._is_short = False
        """The last thread that was wanted could not be started."""

    def start(
        self,
        call: Callable[[], Any],
        context: contextvars.Context,
        answer: Answer,
        soft_at: float,
        ended: Callable[[], None] = nothing,
    ) -> Work:
        """Never raises: if the system gives no thread for it, the answer is that it has to wait."""
        work = Work(call, context, answer, soft_at, ended)
        try:
            if self._busy >= len(self._members):
                self._add_member()
            self._prompter.start()
        except RuntimeError as error:
            self._refuse(work, error)
            return work
        self._busy += 1
        self._inbox.put(work)
        self._prompter.expect(work)
        return work

    def _add_member(self) -> None:
        member = Member(self)
        member.thread.start()
        self._members.add(member)
        self._is_short = False

    def _refuse(self, work: Work, error: RuntimeError) -> None:
        """No thread could be started. That is not the task's fault, so it is told to come again, uncharged."""
        work.is_lost = True  # nobody has it who could be written off
        if not self._is_short:
            self._is_short = True
            log.error(
                "no thread can be started for a task, so its job is put off (%s). Lower --concurrency, or raise the "
                "limits of threads and memory.",
                error,
            )
        # Not here and now: whoever is answered may start the next one, and that one may be refused as well.
        self._loop.call_soon(work.answer, None, Snooze(_NO_THREAD_FOR, f"no thread could be started for it: {error}"))

    def write_off(self, work: Work) -> None:
        """The call never ends. Its thread is lost, and another one may take its place."""
        with self._lock:
            if work.is_lost:
                return
            work.is_lost = True
        if work.member is not None:
            self._members.discard(work.member)
            work.member.is_lost = True
        self._busy -= 1

    def close(self) -> None:
        """Let the threads end, and wait for none: one that has something to do ends when that is over."""
        for _ in self._members:
            self._inbox.put(None)
        self._members.clear()
        self._prompter.close()

    # ── the threads' side ────────────────────────────────────────────────────────────────────────────────────────────

    def serve(self, member: Member) -> None:
        while not member.is_lost:
            work = self._inbox.get()
            if work is None:
                return
            member.perform(work)
            try:
                self._hand_in(work)
            except RuntimeError:
                return  # the loop is closed: nobody wants to know

    def _hand_in(self, work: Work) -> None:
        """Have the loop answer. If there is no memory for that, wait until there is: it would never be answered."""
        is_handed_in = False
        while True:
            try:
                with self._lock:
                    if not is_handed_in:
                        if not work.is_lost:
                            work.ended()
                        self._done.append(work)
                        is_handed_in = True
                    is_told, self._is_told = self._is_told, True
                if not is_told:
                    self._wake()
                return
            except MemoryError:
                time.sleep(_NO_MEMORY_FOR)

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except BaseException:
            self._is_told = False
            raise

    def _tell(self) -> None:
        with self._lock:
            self._is_told = False
        try:
            while self._done:
                work = self._done.popleft()
                self._prompter.forget(work)
                if not work.is_lost:
                    self._busy -= 1
                    work.answer(work.value, work.error)
        finally:
            if self._done:  # whatever went wrong with one, the others are answered
                self._loop.call_soon(self._tell)


class Prompter:
    """Throws soft timeouts into threads, from a thread of its own: the event loop may be blocked just then."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._expected: dict[Work, None] = {}
        self._wake_at = float("inf")
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def start(self) -> None:
        """Its thread is started when there is something to expect for the first time."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="holdfast-prompter", daemon=True)
            thread.start()
            self._thread = thread

    def expect(self, work: Work) -> None:
        with self._news:
            self._expected[work] = None
            if work.soft_at < self._wake_at:
                self._wake_at = work.soft_at
                self._news.notify()

    def forget(self, work: Work) -> None:
        with self._news:
            self._expected.pop(work, None)

    def close(self) -> None:
        with self._news:
            self._is_closed = True
            self._news.notify()

    def _serve(self) -> None:
        while not self._is_closed:
            with self._news:
                now = time.monotonic()
                late = [work for work in self._expected if work.soft_at <= now]
                for work in late:
                    del self._expected[work]
            for work in late:
                work.throw(SoftTimeout())
            with self._news:
                self._wake_at = min((work.soft_at for work in self._expected), default=float("inf"))
                left = self._wake_at - time.monotonic()
                if left > 0 and not self._is_closed:
                    self._news.wait(None if left == float("inf") else left)


class Member:
    """One thread."""

    def __init__(self, crew: Crew) -> None:
        self.is_lost = False
        self.thread = threading.Thread(target=crew.serve, args=(self,), name="holdfast-task", daemon=True)
        self._lock = threading.Lock()
        self._work: Work | None = None
        self._is_thrown = False
        """Something was thrown, and may not have appeared yet."""

    def perform(self, work: Work) -> None:
        try:
            with self._lock:
                self._work = work
            work.member = self
            try:
                if work.early is not None:
                    raise work.early
                work.value = work.context.run(work.call)
                work.has_returned = True
            except BaseException as error:
                work.error = error
            self._end()
        except BaseException as late:  # thrown into it just when it had ended
            self._end()
            if work.error is None and not work.has_returned:
                work.error = late

    def _end(self) -> None:
        with self._lock:
            self._work = None
            if self._is_thrown:
                self._sweep()

    def _sweep(self) -> None:
        """See that what was thrown and has not appeared yet does not appear in another job.

        Another one is put in its place, and appears here. If it were only taken away, Python would go on looking for it
        at every turn of every loop; and a traced 3.11 would never get beyond that look.
        """
        try:
            _set_exception(self.thread.ident or 0, _Swept)
            while True:
                pass
        except _Swept:
            self._is_thrown = False

    def throw(self, work: Work, error: BaseException) -> None:
        # Only a class can be thrown into a thread; an instance is made of it over there.
        kind = SoftTimeout if isinstance(error, SoftTimeout) else asyncio.CancelledError
        with self._lock:
            if self._work is work:
                self._is_thrown = True
                _set_exception(self.thread.ident or 0, kind)
