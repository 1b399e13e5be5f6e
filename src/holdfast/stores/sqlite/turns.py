"""Turns at the one write lock of a SQLite file.

SQLite lets waiting writers try again after growing naps, so a process that writes all the
time can keep another one waiting for seconds. Two lock files make a fair line of them:
whoever holds `next` is the next to write, and only that one waits for `turn`.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from holdfast import forks

try:
    import fcntl
except ImportError:  # Windows: SQLite's own waiting must do
    fcntl = None  # type: ignore[assignment]


class Turn:
    """Held, from any number of processes and threads, by one at a time. The kernel frees it if its holder dies."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._paths = (f"{database}-next", f"{database}-turn")
        self._files: list[int] = []
        forks.watch(self)

    def __enter__(self) -> None:
        """Wait for it. Where the lock files can't be had, SQLite's own lock must do, and its errors tell why."""
        if fcntl is None:
            return
        if not self._files:
            try:
                self._files = [_open(path) for path in self._paths]
            except OSError:
                return
        next_file, turn_file = self._files
        fcntl.flock(next_file, fcntl.LOCK_EX)
        try:
            fcntl.flock(turn_file, fcntl.LOCK_EX)
        finally:
            fcntl.flock(next_file, fcntl.LOCK_UN)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fcntl is not None and self._files:
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


def _open(path: str) -> int:
    """Reading is enough for locking, so that a file that somebody else has made will do."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
