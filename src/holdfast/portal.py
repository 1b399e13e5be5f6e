"""The synchronous façade: one event loop in a thread beside the caller, for all who don't have one.

Works from any thread, after a fork (each process has its own), and under gevent, where the
waiting greenlet lets the others run.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from holdfast import native
from holdfast.errors import RunningLoop

Result = TypeVar("Result")


class Portal:
    """Runs coroutines for synchronous callers."""

    def __init__(self) -> None:
        self._lock = native.make_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def run(self, coroutine: Coroutine[Any, Any, Result], instead: str) -> Result:
        """Run a coroutine and wait for it. On a running event loop, refuse and name what to call `instead`."""
        if _is_on_a_loop():
            coroutine.close()
            raise RunningLoop(f"This call would block the running event loop. Use `await {instead}(…)` here.")
        loop = self._running_loop()
        waiting = _Waiting(coroutine, contextvars.copy_context())
        loop.call_soon_threadsafe(waiting.start, loop)
        try:
            waiting.wait()
        except BaseException:  # the caller was interrupted, so nobody wants the answer any more
            loop.call_soon_threadsafe(waiting.cancel)
            raise
        return waiting.answer()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._process != os.getpid():
            # After a fork the thread is gone, and the lock may be held by it for ever.
            self._lock = native.make_lock()
            self._loop = None
            self._process = os.getpid()
        with self._lock:
            if self._loop is None:
                loop = self._loop = native.new_event_loop()
                native.start_thread(lambda: _serve(loop))
            return self._loop

    def close(self) -> None:
        """Let the thread end. The next call starts another one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._process == os.getpid():
            loop.call_soon_threadsafe(loop.stop)


class _Waiting(Generic[Result]):
    """A call that somebody waits for."""

    def __init__(self, coroutine: Coroutine[Any, Any, Result], context: contextvars.Context) -> None:
        self._coroutine = coroutine
        self._context = context
        self._task: asyncio.Task[Result] | None = None
        self._is_done, self.wait = _gate()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._coroutine, context=self._context)
        self._task.add_done_callback(lambda _: self._is_done())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def answer(self) -> Result:
        assert self._task is not None
        return self._task.result()


def _gate() -> tuple[Callable[[], None], Callable[[], object]]:
    """Two functions: one opens the gate, from any thread; the other waits until it is open."""
    if native.is_patched():
        return native.greenlet_gate()
    lock = native.make_lock()
    lock.acquire()
    return lock.release, lock.acquire


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
