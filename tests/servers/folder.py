"""Private folders of servers.

Whoever uses one holds a shared lock on its file `lock`: the process that made it, and the server's guardian. A folder
whose lock is free was left behind, by a machine that lost power or a guardian that was killed, and is removed by the
next one who makes a folder beside it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

_PREFIX = "holdfast-server-"
_ROOM = 500_000_000


def make_folder(parent: Path) -> tuple[Path, int]:
    """A new folder and the open file that holds its lock."""
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    # Locked before it has its name, so that no sweep can find it free.
    draft = folder / "lock.draft"
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    draft.rename(folder / "lock")
    return folder, lock


def fast_parent() -> Path:
    """Memory where there is enough of it: for servers that need not survive anything."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM:
        return memory
    return Path(tempfile.gettempdir())


def lasting_parent() -> Path:
    """A disk: /tmp may be memory, /var/tmp is not."""
    disk = Path("/var/tmp")
    return disk if disk.is_dir() and os.access(disk, os.W_OK) else Path(tempfile.gettempdir())


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # someone else's, or not complete yet, or gone
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end_server(folder)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)


def _end_server(folder: Path) -> None:
    """End the server whose guardian was killed: only a process that works in this folder is it."""
    try:
        pid = int((folder / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
        if Path(f"/proc/{pid}/cwd").resolve() != (folder / "data").resolve():
            return
        os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    except (OSError, ValueError):
        return
