"""The threads that read the SQLite file. Readers see the last commit and wait for no writer."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from holdfast import native
from holdfast.errors import StoreUnavailable
from holdfast.line import Line
from holdfast.places import Places
from holdfast.stores.sqlite.connection import Access, Connection, translated

Result = TypeVar("Result")

LONGEST_SEARCH = 10.0
_STEPS_BETWEEN_LOOKS = 200_000


class Desk:
    """A connection that may only read, used by one thread from its first question to its last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._access = Access(self._connect)
        self._deadline = 0.0

    def ask(self, question: Callable[[Connection], Result]) -> Result:
        try:
            with self._access.reserved(), translated(self._path):
                self._deadline = time.monotonic() + LONGEST_SEARCH
                return question(self._access.connection())
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorname == "SQLITE_INTERRUPT":
                raise StoreUnavailable(
                    f"The search took more than {LONGEST_SEARCH:.0f} s and was ended. Narrow its filter."
                ) from cause
            raise

    def _connect(self) -> Connection:
        connection = Connection(self._path, is_reader=True)
        connection.raw.set_progress_handler(self._is_too_late, _STEPS_BETWEEN_LOOKS)
        return connection

    def _is_too_late(self) -> int:
        return time.monotonic() > self._deadline

    def close(self) -> None:
        with self._access.reserved():
            self._access.drop()


Answer = Callable[[Desk], None]


class Reader:
    """Answers questions in a thread of its own, which starts on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = native.make_lock()
        self._places = Places()
        self._line: Line[Answer | None] | None = None

    async def read(self, question: Callable[[Connection], Result]) -> Result:
        """Answer a question about the last commit."""
        loop = asyncio.get_running_loop()
        place = await self._places.take(loop)
        future: asyncio.Future[Result] = loop.create_future()

        def answer(desk: Desk) -> None:
            result, error = None, None
            try:
                if not future.cancelled():  # else nobody wants to know any more
                    result = desk.ask(question)
            except BaseException as raised:
                error = raised
            _call(loop, _resolve, future, result, error, place)

        try:
            self._put(answer)
        except BaseException:
            place.release()
            raise
        return await future

    def _put(self, answer: Answer) -> None:
        with self._lock:
            if self._line is None:
                line: Line[Answer | None] = Line()
                desk = Desk(self._path)
                native.start_thread(lambda: _serve(line, desk))
                self._line = line
            self._line.put(answer)

    async def close(self) -> None:
        """Answer what was asked, close the file, and let the thread end."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            loop = asyncio.get_running_loop()
            closed: asyncio.Future[None] = loop.create_future()

            def close(desk: Desk) -> None:
                desk.close()
                _call(loop, _resolve, closed, None, None, None)

            line.put(close)
            line.put(None)
            await closed

    def abandon(self) -> None:
        """In a forked child: the thread is gone, and its connection is the parent's."""
        self._line = None
        self._lock = native.make_lock()
        self._places.clear()


def _serve(line: Line[Answer | None], desk: Desk) -> None:
    while (answer := line.get()) is not None:
        answer(desk)
    line.rest()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return  # the loop is closed: nobody waits there any more


def _resolve(
    future: asyncio.Future[Any], result: Any, error: BaseException | None, place: asyncio.Semaphore | None
) -> None:
    if place is not None:
        place.release()
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
