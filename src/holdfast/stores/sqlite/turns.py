"""Turns at the one write lock of a SQLite file.

SQLite lets waiting writers try again after growing naps, so a process that writes all the
time can keep another one waiting for seconds. Two lock files make a fair line of them:
whoever holds `next` is the next to write, and only that one waits for `turn`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

from holdfast import forks, native

try:
    import fcntl
except ImportError:  # Windows: SQLite's own waiting must do
    fcntl = None  # type: ignore[assignment]


PATIENCE = 10.0


class Turn:
    """Held, from any number of processes and threads, by one at a time. The kernel frees it if its holder dies."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._paths = (f"{database}-next", f"{database}-turn")
        self._files: list[int] = []
        self._is_ours = False
        forks.watch(self)

    def __enter__(self) -> None:
        """Wait for it, but not for ever: a process that was stopped in its turn must not stop all others.

        Where the lock files can't be had, or not in time, SQLite's own lock must do, and its errors tell why.
        """
        if fcntl is None or not self._open_files():
            return
        give_up_at = time.monotonic() + PATIENCE
        next_file, turn_file = self._files
        if _lock(next_file, give_up_at):
            try:
                self._is_ours = _lock(turn_file, give_up_at)
            finally:
                fcntl.flock(next_file, fcntl.LOCK_UN)

    def _open_files(self) -> bool:
        try:
            while len(self._files) < len(self._paths):
                self._files.append(_open(self._paths[len(self._files)]))
        except OSError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fcntl is not None and self._is_ours:
            self._is_ours = False
            fcntl.flock(self._files[1], fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the files."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)

    def before_fork(self) -> None:
        return

    def after_fork(self, *, in_child: bool) -> None:
        """The files are shared with a forked child: if the parent died in its turn, the child would keep it."""
        if in_child:
            self.close()


def _lock(file: int, give_up_at: float) -> bool:
    """Lock a file; False if others have kept it for too long. The kernel's own waiting has no end, so it is polled."""
    assert fcntl is not None
    nap = 0.0001
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                return False
            native.sleep(nap)
            nap = min(nap * 1.5, 0.001)
        else:
            return True


def _open(path: str) -> int:
    """Reading is enough for locking, so that a file that somebody else has made will do."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
