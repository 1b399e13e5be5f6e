"""The thread that called: while it waits for the event loop it makes the calls of `def` tasks, as a crew of one.

So the tasks of a test find what belongs to its thread: connections that are kept per thread, the transaction that the
test has opened there, a debugger.
"""

from __future__ import annotations

import _queue
import asyncio
import contextvars
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from holdfast import native
from holdfast.worker.crew import Answer, Crew, Work, nothing

_LOOK_EVERY: Final = 0.5
"""Seconds between two looks, so that a Ctrl-C is noticed."""


class Deckhand:
    """A gate at which one thread waits, and is called to work meanwhile."""

    def __init__(self) -> None:
        self._inbox: native.Channel[tuple[Work, Callable[[], object]] | None] = native.Channel()
        self._is_there = True
        self._token = _waiting.set(self)

    def take(self, work: Work, tell: Callable[[], object]) -> None:
        """Make a call, and then tell. From any thread."""
        self._inbox.put((work, tell))
        if not self._is_there:
            self._refuse_all()

    # ── as a gate ────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        self._inbox.put(None)

    def wait(self) -> None:
        while True:
            try:
                duty = self._inbox.get(timeout=_LOOK_EVERY)
            except _queue.Empty:
                continue
            if duty is None:
                return
            work, tell = duty
            _perform(work)
            tell()
            if isinstance(work.error, KeyboardInterrupt):
                raise work.error  # meant for the test, not for its task

    def close(self) -> None:
        _waiting.reset(self._token)
        self._is_there = False
        self._refuse_all()

    def _refuse_all(self) -> None:
        """Nobody is here any more who could make the calls."""
        while True:
            try:
                duty = self._inbox.get_nowait()
            except _queue.Empty:
                return
            if duty is not None:
                work, tell = duty
                work.error = asyncio.CancelledError("its caller does not wait any longer")
                tell()


_waiting: ContextVar[Deckhand | None] = ContextVar("holdfast_deckhand", default=None)


def waiting_deckhand() -> Deckhand | None:
    """The thread that waits for this coroutine, if one does."""
    return _waiting.get()


class CrewOfOne(Crew):
    """Has its calls made by the thread that waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hand: Deckhand) -> None:
        super().__init__(loop)
        self._home = loop
        self._hand = hand

    def start(
        self,
        call: Callable[[], Any],
        context: contextvars.Context,
        answer: Answer,
        soft_at: float,
        ended: Callable[[], None] = nothing,
    ) -> Work:
        work = Work(call, context, answer, soft_at, ended)

        def tell() -> None:
            work.ended()
            self._home.call_soon_threadsafe(lambda: answer(work.value, work.error))

        self._hand.take(work, tell)
        return work


def _perform(work: Work) -> None:
    try:
        if work.early is not None:
            raise work.early
        work.value = work.context.run(work.call)
    except BaseException as error:
        # Without this frame: a traceback begins with the task.
        work.error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
