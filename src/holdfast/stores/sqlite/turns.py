"""Turns at the one write lock of a SQLite file.

SQLite lets waiting writers try again after growing naps, so a process that writes all the
time can keep another one waiting for seconds. Two lock files make a fair line of them:
whoever holds `next` is the next to write, and only that one waits for `turn`.

Connections that are not ours know nothing of turns. While there are any, whoever has the turn lets them in now and
then; how busy the lock has been is written into the file `turn`, by whoever holds it.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast import forks, native
from holdfast.stores.sqlite.guests import Guests
from holdfast.stores.sqlite.occupancy import SIZE, Occupancy

fcntl: Any = None if sys.platform == "win32" else importlib.import_module("fcntl")

PATIENCE = 10.0
"""Seconds. A process that was stopped in its turn must not stop all others: SQLite's own lock decides then."""


class Turn:
    """Held, from any number of processes and threads, by one at a time. The kernel frees it if its holder dies."""

    def __init__(self, database: Path) -> None:
        self._paths = (f"{database}-next", f"{database}-turn")
        self._files: list[int] = []
        self._usher: Usher | None = None
        self._is_ours = False
        self.is_others = False
        """It could not be had in time: other processes, or threads, that take turns as well are at it."""
        self._guests = Guests(database)
        self._occupancy: Occupancy | None = None
        """What is known of the lock, if there is anybody to leave gaps for."""
        self._is_begun = False
        forks.watch(self)

    def __enter__(self) -> None:
        """Wait for it. Where it can't be had, or not in time, go on without: SQLite's own errors tell why."""
        self.is_others = self._usher is not None and self._usher.is_waiting
        if self.is_others:
            return  # for one that gave up; what it holds of the lock files must not be touched
        if fcntl is not None and self._open_files():
            self._is_ours = self._take_at_once() or self._wait_in_line()
            self.is_others = not self._is_ours
            if self._is_ours and self._guests.are_about():
                self._leave_gap()

    def begun(self) -> None:
        """The holder has SQLite's write lock from now on. If it had to wait for it, others have had their chance."""
        if self._occupancy is not None:
            self._occupancy = self._occupancy.taken(time.monotonic())
            self._is_begun = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ours:
            self._note_end()
            self._is_ours = False
            _unlock(self._files[1])

    def _leave_gap(self) -> None:
        """The lock is free, and nobody of ours takes it meanwhile. Only threads that may sleep take turns."""
        self._occupancy = _read(self._files[1])
        gap = self._occupancy.gap(time.monotonic())
        if gap:
            native.sleep(gap)

    def _note_end(self) -> None:
        if self._occupancy is not None and self._is_begun:
            _write(self._files[1], self._occupancy.released(time.monotonic()))
        self._occupancy, self._is_begun = None, False

    def _open_files(self) -> bool:
        try:
            while len(self._files) < len(self._paths):
                self._files.append(_open(self._paths[len(self._files)]))
        except OSError:
            return False
        return True

    def _take_at_once(self) -> bool:
        """Nobody is there. If somebody waits, `next` is taken, and nobody is passed over."""
        next_file, turn_file = self._files
        if not _lock_at_once(next_file):
            return False
        try:
            return _lock_at_once(turn_file)
        finally:
            _unlock(next_file)

    def _wait_in_line(self) -> bool:
        if self._usher is None:
            self._usher = Usher(*self._files)
        return self._usher.ask(PATIENCE)

    def close(self) -> None:
        """Let go of the files. If an usher may still stand at them, it is the one to close them."""
        files, self._files = self._files, []
        usher, self._usher = self._usher, None
        if usher is not None:
            usher.dismiss()
        else:
            _close(files)

    def before_fork(self) -> None:
        return

    def after_fork(self, *, in_child: bool) -> None:
        """The files are shared with a forked child: if the parent died in its turn, the child would keep it."""
        if in_child:
            self._usher = None  # its thread is the parent's
            self.close()


class Usher:
    """Stands in line at the lock files, in a thread of its own: the kernel's waiting is fair, but knows no end."""

    def __init__(self, next_file: int, turn_file: int) -> None:
        self._next_file = next_file
        self._turn_file = turn_file
        self._lock = native.make_lock()
        self._asked: native.Channel[bool] = native.Channel()
        self._granted = native.make_lock()
        self._granted.acquire()
        self.is_waiting = False
        self._is_wanted = False
        native.start_thread(self._serve)

    def ask(self, patience: float) -> bool:
        """Wait for the turn; False if that takes too long, or if an earlier wait has not come to its end."""
        with self._lock:
            if self.is_waiting:
                return False
            self.is_waiting = self._is_wanted = True
        self._asked.put(True)
        if self._granted.acquire(timeout=patience):
            return True
        with self._lock:
            self._is_wanted = False
        # It may have come at the very last moment.
        return self._granted.acquire(blocking=False)

    def dismiss(self) -> None:
        self._asked.put(False)

    def _serve(self) -> None:
        while self._asked.get():
            _lock(self._next_file)
            _lock(self._turn_file)
            _unlock(self._next_file)
            with self._lock:
                self.is_waiting = False
                if self._is_wanted:
                    self._granted.release()
                else:
                    _unlock(self._turn_file)
        _close([self._next_file, self._turn_file])


def _lock(file: int) -> None:
    fcntl.flock(file, fcntl.LOCK_EX)


def _lock_at_once(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(file: int) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _open(path: str) -> int:
    """Reading is enough for locking, so that a file that somebody else has made will do."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _read(turn_file: int) -> Occupancy:
    try:
        return Occupancy.from_bytes(os.pread(turn_file, SIZE, 0))
    except OSError:
        return Occupancy()


def _write(turn_file: int, occupancy: Occupancy) -> None:
    with suppress(OSError):  # it may be somebody else's, or the disk is full: then there are no gaps
        os.pwrite(turn_file, occupancy.to_bytes(), 0)
