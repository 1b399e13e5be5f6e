"""A service: something that is done again and again, and that no failure of the database ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from abc import ABC, abstractmethod

from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.maintenance")


class Service(ABC):
    """Subclasses say what to do, and when to do it again."""

    longest_pause = 10.0
    """Seconds, after failures."""

    def __init__(self) -> None:
        self._nudged = asyncio.Event()

    @abstractmethod
    async def act(self) -> float:
        """Do it once, and return in how many seconds to do it again."""

    def failed(self) -> None:
        """The database did not answer: what was known may be wrong."""
        return

    def nudge(self) -> None:
        """Do it now rather than later."""
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            self._nudged.clear()
            try:
                pause = await self.act()
                failures = 0
            except HoldfastError as error:
                self.failed()
                failures += 1
                pause = min(0.25 * 2**failures, self.longest_pause)
                log.warning("%s: %s", type(self).__name__.lower(), error)
            # Jittered, so that many workers don't come to the database as one.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * random.uniform(0.8, 1.2)):
                    await self._nudged.wait()
