"""Places: how many questions of one event loop may be under way with a thread. Further callers wait for one."""

from __future__ import annotations

import asyncio

MOST = 1000


class Places:
    """Bounded, for each event loop.

    A place is given back when the answer comes, not when the caller goes: what a cancelled caller has asked for is
    still under way, and callers who time out and try again must not pile up behind a thread that is stuck.
    """

    def __init__(self) -> None:
        self._of_loops: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    async def take(self, loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
        """Wait for a place. Whoever answers calls `release` on what this returns, in the loop's own thread."""
        places = self._of_loops.get(loop)
        if places is None:
            for other in list(self._of_loops):
                if other.is_closed():
                    self._of_loops.pop(other, None)
            places = self._of_loops.setdefault(loop, asyncio.Semaphore(MOST))
        await places.acquire()
        return places

    def clear(self) -> None:
        """In a forked child: nobody waits here any more."""
        self._of_loops.clear()
