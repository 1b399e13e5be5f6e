"""The one thread of a process that writes to the SQLite file, and group commit.

Operations that arrive while a transaction is being committed form the next one: there is no
timer, so a lone caller waits for nobody, and a crowd shares one wait for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast import native
from holdfast.line import Line
from holdfast.places import Places
from holdfast.stores.sqlite.session import Operation, Session

Result = TypeVar("Result")

_MOST_WEIGHT = 10_000


class Writer:
    """Runs operations in transactions, in a thread of its own, which starts on first use."""

    def __init__(self, make_session: Callable[[], Session]) -> None:
        self._make_session = make_session
        self._lock = native.make_lock()
        self._line: Line[list[Operation[Any]]] | None = None
        self._places = Places()
        self._gathered: dict[asyncio.AbstractEventLoop, list[Operation[Any]]] = {}

    async def run(self, operation: Operation[Result]) -> Result:
        """Run an operation and wait for its commit. Cancelling the caller does not undo it, nor disturb the others."""
        loop = asyncio.get_running_loop()
        operation.place = await self._places.take(loop)
        future = operation.expect(loop)
        gathered = self._gathered.get(loop)
        if gathered is None:
            # What else comes in this turn of the loop goes along: one hand-over, one transaction.
            gathered = self._gathered[loop] = []
            loop.call_soon(self._hand_over, loop)
        gathered.append(operation)
        return await future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        operations = self._gathered.pop(loop, None)
        if operations:
            try:
                self._put(operations)
            except Exception as error:  # no thread could be started
                for operation in operations:
                    operation.error = error
                _resolve(operations)

    def _put(self, operations: list[Operation[Any]]) -> None:
        with self._lock:
            if self._line is None:
                line: Line[list[Operation[Any]]] = Line()
                session = self._make_session()
                native.start_thread(lambda: _serve(line, session))
                self._line = line
            self._line.put(operations)

    async def close(self) -> None:
        """Finish what was submitted, close the file, and let the thread end. The next operation starts another one."""
        loop = asyncio.get_running_loop()
        self._hand_over(loop)
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            last: Operation[None] = Operation(lambda _: None, needs_lock=False, is_last=True)
            closed = last.expect(loop)
            line.put([last])
            await closed

    def abandon(self) -> None:
        """In a forked child: the thread is gone, and its connection is the parent's."""
        self._line = None
        self._lock = native.make_lock()
        self._places.clear()
        self._gathered.clear()


def _serve(line: Line[list[Operation[Any]]], session: Session) -> None:
    last: Operation[Any] | None = None
    while last is None:
        operations = _take(line)
        last = operations.pop() if operations[-1].is_last else None
        if operations:
            session.run(operations)
            _answer(operations)
    session.close()
    _answer([last])
    line.rest()


def _take(line: Line[list[Operation[Any]]]) -> list[Operation[Any]]:
    """Wait for operations, and take what else has gathered."""
    operations = line.get()
    weight = sum(operation.weight for operation in operations)
    while weight < _MOST_WEIGHT and not operations[-1].is_last and not line.empty():
        more = line.get()
        operations += more
        weight += sum(operation.weight for operation in more)
    return operations


def _answer(operations: list[Operation[Any]]) -> None:
    """Hand the results over, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Operation[Any]]] = {}
    for operation in operations:
        if operation.loop is not None:
            by_loop.setdefault(operation.loop, []).append(operation)
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, answered)
        except RuntimeError:
            continue  # that loop is closed: nobody waits there any more


def _resolve(operations: list[Operation[Any]]) -> None:
    for operation in operations:
        if operation.place is not None:
            operation.place.release()
        future = operation.future
        if future is None or future.done():
            continue  # the caller was cancelled; the operation happened all the same
        if operation.error is not None:
            future.set_exception(operation.error)
        else:
            future.set_result(operation.result)
