"""Locks by which others see that a worker's process is there: a file for each worker, in a folder beside the database.

The kernel lets go of a lock when the process ends that holds it, however it ends, and others see that at once. It is a
help: where locks can't be had (Windows, a folder without rights), nothing can be seen, and heartbeats must do.

Files are made and removed in transactions: the write lock keeps those apart who do it, and nobody forks meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from holdfast import forks, native
from holdfast.stores.sqlite.turns import fcntl

FREE_FOR: Final = timedelta(seconds=0.2)
"""How long a lock must be seen free. No living process loses one of these, so that twice seen is enough: also the
children of a killed supervisor, which the kernel kills right after it has let go of the locks, are dead by then."""


class WorkerLocks:
    """The locks of the workers that this process has registered, and a look at those of the others. Nothing raises."""

    def __init__(self, database: Path) -> None:
        self._folder = Path(f"{database}-workers")
        self._files: dict[UUID, int] = {}
        self._lock = native.make_lock()
        forks.watch(self)

    def take(self, worker: UUID) -> None:
        """Hold the lock of a worker from now on, until it is let go of or this process ends."""
        path = self._folder / worker.hex
        with self._lock:
            file = _make_locked(path)
            if file is not None:
                former = self._files.pop(worker, None)
                self._files[worker] = file
                if former is not None:
                    os.close(former)
            elif worker not in self._files:
                _remove(path)  # left by an earlier life, it would look as if this one were over

    def let_go(self, worker: UUID) -> None:
        """This worker is no more, whoever registered it."""
        with self._lock:
            _remove(self._folder / worker.hex)
            file = self._files.pop(worker, None)
            if file is not None:
                os.close(file)

    def is_held(self, worker: UUID) -> bool | None:
        """Whether the process that registered a worker is there; None if that can't be seen."""
        with self._lock:
            return True if worker in self._files else _is_locked(self._folder / worker.hex)

    def close(self) -> None:
        """Let go of all that is held here. A worker that lives on can't be seen by its lock any more."""
        for worker in list(self._files):
            self.let_go(worker)

    def abandon(self) -> None:
        """In a forked child: the locks are the parent's. What is closed here stays locked there."""
        self._lock = native.make_lock()
        files, self._files = self._files, {}
        for file in files.values():
            os.close(file)

    def before_fork(self) -> None:
        return

    def after_fork(self, *, in_child: bool) -> None:
        """The files are shared with a forked child: if the parent died, the child would keep its locks."""
        if in_child:
            self.abandon()


def _make_locked(path: Path) -> int | None:
    """A file in this place that is locked; None if that can't be done. It is never seen there without its lock."""
    if fcntl is None:
        return None
    file = None
    new = f"{path}-new"
    try:
        path.parent.mkdir(exist_ok=True)
        file = os.open(new, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(new, path)
    except OSError:
        _remove(Path(new))
        if file is not None:
            os.close(file)
        return None
    return file


def _is_locked(path: Path) -> bool | None:
    if fcntl is None:
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # One that was replaced or removed since it was opened is nobody's any more, and tells nothing.
        return False if os.fstat(file).st_nlink else None
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
