"""A log handler that never waits for whoever reads what it writes."""

from __future__ import annotations

import functools
import logging
import os
import select
import socket
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from holdfast import forks

_MOST_PENDING: Final = 1_000_000
"""Bytes of lines that wait for their reader."""
_PATIENCE: Final = 1.0
"""Seconds that they are waited for at the end."""


class PatientHandler(logging.Handler):
    """Writes lines to a file that may be a pipe or a terminal, and never waits for its reader.

    Who reads may have stopped: Ctrl-S, `less`, a log driver that is stuck. Whoever logs is mostly an event loop, and
    the supervisor's must go on in any case. Then lines gather here, and what is too much is left out, and counted.
    """

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._closing = ExitStack()
        self._try_to_write = _writing_without_waiting(file, self._closing)
        self._lock = threading.RLock()
        self._forget()
        forks.watch(self)

    def _forget(self) -> None:
        self._pending: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._at_rest = threading.Event()
        """Nobody waits for the reader."""
        self._at_rest.set()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._forget()  # the thread that waits is the parent's, and so are its lines
        self._lock.release()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:
            self.handleError(record)
            return
        with self._lock:
            if self._left_out or (self._pending and self._size + len(line) > _MOST_PENDING):
                self._left_out += 1  # until all that came before is out, and this can be told where it belongs
            else:
                self._put(line)
            if self._at_rest.is_set():
                self._write_what_fits()
                if self._pending:
                    self._wait_for_the_reader()

    def _put(self, line: bytes) -> None:
        self._pending.append(line)
        self._size += len(line)

    def _first(self) -> bytes | None:
        """The line that is next; None if all is out."""
        if not self._pending and self._left_out:
            self._put(f"({self._left_out:,} lines were left out, since nobody read them)\n".encode())
            self._left_out = 0
        return self._pending[0] if self._pending else None

    def flush(self) -> None:
        """For the end of the process: let those who read have what is there, but don't insist."""
        self._at_rest.wait(_PATIENCE)
        with self._lock:
            if self._at_rest.is_set():
                self._write_what_fits()

    def close(self) -> None:
        with self._lock:
            self._try_to_write = _refuse
            self._closing.close()
        super().close()

    def _write_what_fits(self) -> None:
        try:
            while (line := self._first()) is not None:
                written = self._try_to_write(line)
                self._size -= written
                if written < len(line):
                    self._pending[0] = line[written:]
                else:
                    self._pending.popleft()
        except BlockingIOError:
            pass
        except OSError:  # nobody reads any more
            self._forget()

    def _wait_for_the_reader(self) -> None:
        """In a thread of its own, as long as there is something to wait for."""
        try:
            threading.Thread(target=self._write, name="holdfast-log", daemon=True).start()
        except RuntimeError:  # there can't be one more, or Python is at its end
            return
        self._at_rest.clear()  # it waits for the lock that is held here

    def _write(self) -> None:
        while (line := self._next()) is not None:
            try:
                self._write_whole(line)
            except OSError:  # nobody reads any more
                with self._lock:
                    self._pending.clear()
                    self._size = self._left_out = 0

    def _next(self) -> bytes | None:
        with self._lock:
            line = self._first()
            if line is None:
                self._at_rest.set()
                return None
            self._pending.popleft()
            self._size -= len(line)
            return line

    def _write_whole(self, line: bytes) -> None:
        while line:
            try:
                line = line[os.write(self._file, line) :]
            except BlockingIOError:  # somebody else who writes there does not want to wait
                room = select.poll()
                room.register(self._file, select.POLLOUT)
                room.poll()


def _writing_without_waiting(file: int, closing: ExitStack) -> Callable[[bytes], int]:
    """What writes as much as there is room for, and raises BlockingIOError if there is none, until it is closed.

    Pipes and terminals are opened once more for that: others have this descriptor too, and would be refused what they
    are ready to wait for.
    """
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return functools.partial(os.write, file)  # a disk is no reader
    if stat.S_ISSOCK(mode):  # as from a service manager
        own = closing.enter_context(socket.socket(fileno=os.dup(file)))
        return lambda line: own.send(line, socket.MSG_DONTWAIT)
    try:
        descriptor = os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # a system without this, or it belongs to somebody else
        return _refuse
    closing.callback(os.close, descriptor)
    return functools.partial(os.write, descriptor)


def _refuse(line: bytes) -> int:
    raise BlockingIOError
