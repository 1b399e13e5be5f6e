"""A watch on the event loops of a process: it writes down which of their turns take long."""

from __future__ import annotations

import asyncio
import time

from tests.worker.history import here

TOO_LONG = 0.05
"""Seconds of the processor that one turn of a loop may take: what others do meanwhile is not meant."""


def watch() -> None:
    """From now on, of loops that are asyncio's own: nobody can look into the turns of uvloop's."""
    run = asyncio.Handle._run
    is_seen = False

    def timed(handle: asyncio.Handle) -> None:
        nonlocal is_seen
        before = time.thread_time()
        run(handle)
        took = time.thread_time() - before
        if not is_seen:
            is_seen = True
            here().write("turn")
        if took > TOO_LONG:
            here().write("long turn", note=f"{took:.3f} s: {handle!r}")

    asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]
