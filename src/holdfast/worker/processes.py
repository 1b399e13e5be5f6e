"""What the operating system can do for a process of ours."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, whatever it is doing. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it has died already


def name_process(title: str) -> None:
    """What `ps` and `top` show."""
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(title)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def kill_group(pid: int) -> None:
    """Kill a process with all that it has started, if it is there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def resident_memory(pid: int) -> int:
    """Bytes of memory that a process uses; 0 if that can't be known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(Exception):
        import psutil

        return int(psutil.Process(pid).memory_info().rss)
    return 0


def how_it_ended(status: int) -> str:
    """The end of a process in words."""
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
