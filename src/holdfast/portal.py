"""The synchronous façade: one event loop in a thread beside the caller, for all who don't have one.

Works from any thread, after a fork (each process has its own), and under gevent, where the
waiting greenlet lets the others run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from holdfast import forks, native
from holdfast.errors import RunningLoop

Result = TypeVar("Result")


class Portal:
    """Runs coroutines for synchronous callers. `make_gate`: where each of them waits."""

    def __init__(self, make_gate: Callable[[], native.Gate] = native.make_gate) -> None:
        self._make_gate = make_gate
        self._lock = native.make_reentrant_lock()
        self._server: Server | None = None
        forks.watch(self)

    def run(self, coroutine: Coroutine[Any, Any, Result], instead: str) -> Result:
        """Run a coroutine and wait for it. On a running event loop, refuse and name what to call `instead`.

        A caller that is interrupted (Ctrl-C, a greenlet's timeout) goes on at once; the coroutine is cancelled.
        """
        try:
            refuse_on_a_loop(instead)
        except RunningLoop:
            coroutine.close()
            raise
        call = Call(coroutine, self._make_gate())
        try:
            self._submit_and_wait(call)
            return call.answer()
        finally:
            del call  # an error holds on to this frame, and the call to the error

    def close(self) -> None:
        """Let the thread end when those who wait have their answers. The next call starts another one."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.end()

    def _submit_and_wait(self, call: Call[Any]) -> None:
        try:
            self._submit(call)
            call.gate.wait()
        except BaseException:
            call.give_up()
            raise
        finally:
            call.gate.close()

    def _submit(self, call: Call[Any]) -> None:
        while True:
            with self._lock:
                server = self._server
                if server is None:
                    server = Server()
                    native.start_thread(server.serve)
                    self._server = server
            if server.submit(call):
                return
            with self._lock:  # it was closed meanwhile, or could not begin
                if self._server is server:
                    self._server = None

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            _abandoned.append(self._server)
            self._server = None
        self._lock.release()


_abandoned: list[Server | None] = []
"""Loops that a forked child has from its parent: collecting them would run the ends of the parent's coroutines here."""


class Server:
    """An event loop in a thread of its own, until it is told to end and everybody has been answered."""

    def __init__(self) -> None:
        self._lock = native.make_reentrant_lock()
        self._fresh: deque[Call[Any]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_ending = False
        self._under_way = 0

    # ── the callers' side ────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, call: Call[Any]) -> bool:
        """Take on a call; False if this is ending."""
        with self._lock:
            if self._is_ending:
                return False
            call.server = self
            self._fresh.append(call)
        self.soon(self._look)
        return True

    def end(self) -> None:
        """Take on nothing more."""
        with self._lock:
            self._is_ending = True
        self.soon(self._look)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the thread, if it is there; it looks around by itself when it begins and before it ends."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(callback)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # Otherwise everybody has been answered.

    # ── the thread's side ────────────────────────────────────────────────────────────────────────────────────────────

    def serve(self) -> None:
        try:
            loop = native.new_event_loop()
        except BaseException as error:  # out of files, for example
            self._refuse(error)
            return
        self._loop = loop
        loop.call_soon(self._look)
        try:
            self._run(loop)
            self._loop = None  # a last look around that comes now must not stop what follows
            loop.run_until_complete(_clear())
        finally:
            loop.close()

    def _refuse(self, error: BaseException) -> None:
        with self._lock:
            self._is_ending = True
        while self._fresh:
            self._fresh.popleft().refuse(error)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._is_over():
            try:
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                continue  # raised by one call: its caller gets it, and the others are still waiting

    def _is_over(self) -> bool:
        return self._is_ending and not self._fresh and not self._under_way

    def _look(self) -> None:
        while self._fresh:
            task = self._fresh.popleft().start()
            if task is not None:
                self._under_way += 1
                task.add_done_callback(self._count_off)
        self._stop_if_over()

    def _count_off(self, _: object) -> None:
        self._under_way -= 1
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if self._loop is not None and self._is_over():
            self._loop.stop()


class Call(Generic[Result]):
    """A coroutine that somebody waits for."""

    def __init__(self, coroutine: Coroutine[Any, Any, Result], gate: native.Gate) -> None:
        self.gate = gate
        self.server: Server | None = None
        self._coroutine = coroutine
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[Result] | None = None
        self._refusal: BaseException | None = None
        self._is_unwanted = False

    # ── the caller's side ────────────────────────────────────────────────────────────────────────────────────────────

    def answer(self) -> Result:
        """What came of it. Only when the gate is open."""
        if self._task is None:
            assert self._refusal is not None
            raise self._refusal
        return self._task.result()

    def give_up(self) -> None:
        """Nobody wants the answer any more."""
        self._is_unwanted = True
        if self.server is None:
            self._coroutine.close()
        else:
            self.server.soon(self._cancel)

    # ── the thread's side ────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> asyncio.Task[Result] | None:
        if self._is_unwanted:
            self._coroutine.close()
            return None
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._coroutine, context=self._context)
        self._task.add_done_callback(self._finish)
        return self._task

    def refuse(self, error: BaseException) -> None:
        self._coroutine.close()
        self._refusal = error
        self.gate.open()

    def _finish(self, task: asyncio.Task[Result]) -> None:
        if not task.cancelled():
            task.exception()  # seen, so that asyncio does not report it when nobody waits any more
        self.gate.open()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _clear() -> None:
    """Let what the calls have left behind come to its end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def refuse_on_a_loop(instead: str) -> None:
    """Raise RunningLoop, naming what to call `instead`, if this thread runs an event loop: it must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RunningLoop(f"This call would block the running event loop. Use `await {instead}(…)` here.")
