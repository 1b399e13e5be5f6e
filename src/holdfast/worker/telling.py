"""What a worker says in the terminal: plain lines, each with its time, its level and who says it."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections import deque
from typing import Final

from holdfast.context import current

_AT_ONCE: Final = select.PIPE_BUF
"""Bytes that a pipe takes without waiting, if it takes any."""
_MOST_PENDING: Final = 1_000_000
"""Bytes of lines that wait for their reader."""
_PATIENCE: Final = 1.0
"""Seconds that they are waited for at the end."""


class JobFilter(logging.Filter):
    """Gives records the job in whose task they were made: `job_id`, `task`, `queue`, `attempt`."""

    def filter(self, record: logging.LogRecord) -> bool:
        context = current.get()
        if context is not None:
            for name, value in context.log_fields.items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True


class _Lines(logging.Formatter):
    def __init__(self, who: str) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(who)s %(message)s", "%H:%M:%S")
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        job = getattr(record, "job_id", None)
        is_of_a_task = record.name.startswith("holdfast.task.")  # said through its context
        is_ours = record.name.startswith("holdfast.")
        who = f"[{self._who}]" if is_ours else f"[{self._who}] {record.name}:"
        if job is not None and (is_of_a_task or not is_ours):
            who += f" ({getattr(record, 'task', '')} {job})"
        record.__dict__["who"] = who
        return super().format(record)


class PatientHandler(logging.Handler):
    """Writes lines to a file that may be a pipe or a terminal, and never waits for its reader.

    Who reads may have stopped: Ctrl-S, `less`, a log driver that is stuck. Whoever logs is mostly an event loop, and
    the supervisor's must go on in any case. Then lines gather here, and what is too much is left out, and counted.
    """

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._room = select.poll()
        self._room.register(file, select.POLLOUT)
        self._pending: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._news = threading.Condition()
        self._is_writing = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:
            self.handleError(record)
            return
        with self._news:
            if not self._is_writing:
                line = self._write_what_fits(line)
            if line:
                self._put_off(line)

    def flush(self) -> None:
        """For the end of the process: let those who read have what is there, but don't insist."""
        with self._news:
            self._news.wait_for(lambda: not self._is_writing, _PATIENCE)

    def _write_what_fits(self, line: bytes) -> bytes:
        """What is left of it."""
        try:
            while line and self._room.poll(0):
                line = line[os.write(self._file, line[:_AT_ONCE]) :]
        except OSError:
            return b""  # nobody reads any more
        return line

    def _put_off(self, line: bytes) -> None:
        if self._size + len(line) > _MOST_PENDING:
            self._left_out += 1
            return
        self._pending.append(line)
        self._size += len(line)
        if not self._is_writing:
            self._is_writing = True
            try:
                threading.Thread(target=self._write, name="holdfast-log", daemon=True).start()
            except RuntimeError:  # there can't be one more, or Python is at its end
                self._is_writing = False

    def _write(self) -> None:
        """In a thread of its own, while there is something to wait for."""
        while (line := self._next()) is not None:
            try:
                while line:
                    line = line[os.write(self._file, line) :]
            except OSError:  # nobody reads any more
                with self._news:
                    self._pending.clear()
                    self._size = self._left_out = 0

    def _next(self) -> bytes | None:
        with self._news:
            if self._pending:
                line = self._pending.popleft()
                self._size -= len(line)
                return line
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                return f"({left_out:,} lines were left out, since nobody read them)\n".encode()
            self._is_writing = False
            self._news.notify_all()
            return None


def set_up_logging(level: str, who: str) -> None:
    """Lines on the standard error, unless the app has set up logging itself."""
    handler = _handler()
    handler.setFormatter(_Lines(who))
    handler.addFilter(JobFilter())
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
    root.setLevel(level)


def _handler() -> logging.Handler:
    try:
        return PatientHandler(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # it is no file
        return logging.StreamHandler(sys.stderr)


def tell_handlers_of_jobs() -> None:
    """Let the handlers that an app has set up by now have the job in their records, too. Once more does no harm.

    Not by the records' factory: whatever that puts there, nobody could say with `extra=` any more.
    """
    for logger in (logging.getLogger(), *logging.Logger.manager.loggerDict.values()):
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if not any(isinstance(each, JobFilter) for each in handler.filters):
                handler.addFilter(JobFilter())
