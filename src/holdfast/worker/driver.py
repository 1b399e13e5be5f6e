"""Driving a user's coroutine: each of its steps is recorded, and a soft timeout appears inside it, at its await."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Driven(Generic[Result]):
    """Awaits a coroutine, step by step.

    `throw` makes an exception appear where the coroutine waits, in place of the cancellation that wakes it: so task
    groups and timeouts inside it clean up as they do for a cancellation, and the asyncio task itself is not cancelled.
    """

    __slots__ = ("_cancels", "_coroutine", "_on_cpu", "_slot", "_task", "_thrown")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Result],
        on_cpu: memoryview,
        slot: int,
        task: asyncio.Task[Any] | None,
    ) -> None:
        """`task` is the one that will await this. `on_cpu` says which slot's coroutine is being run."""
        self._coroutine = coroutine
        self._on_cpu = on_cpu
        self._slot = slot
        self._thrown: BaseException | None = None
        self._cancels = 0
        self._task = task

    def throw(self, error: BaseException) -> None:
        """Wake the coroutine with this exception. Nothing if it has ended."""
        if self._task is not None and not self._task.done():
            self._thrown = error
            self._cancels += 1
            self._task.cancel()

    def __await__(self) -> Generator[Any, None, Result]:
        coroutine, on_cpu, slot = self._coroutine, self._on_cpu, self._slot
        error: BaseException | None = None
        try:
            while True:
                on_cpu[0] = slot
                try:
                    awaited = coroutine.send(None) if error is None else coroutine.throw(error)
                except StopIteration as stop:
                    result: Result = stop.value
                    return result
                finally:
                    on_cpu[0] = -1
                try:
                    yield awaited
                    error = None
                except BaseException as other:
                    error = other
                # Also if it was not woken by a cancellation: what it waits for may have swallowed that.
                if self._thrown is not None:
                    error = self._take(self._thrown, error)
        finally:
            self._task = None

    def _take(self, thrown: BaseException, woken_by: BaseException | None) -> BaseException:
        assert self._task is not None
        for _ in range(self._cancels):
            self._task.uncancel()
        self._thrown, self._cancels = None, 0
        if woken_by is not None and not isinstance(woken_by, asyncio.CancelledError):
            thrown.__context__ = woken_by
        return thrown
