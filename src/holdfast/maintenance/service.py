"""A service: something that is done again and again, and that no failure of the database ends.

Some are also done when a hint comes. Hints only make them earlier: nothing is left undone without.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final

from holdfast.errors import HoldfastError
from holdfast.store import Hint, HintKind, Store

log = logging.getLogger("holdfast.maintenance")

SOONEST: Final = 0.02
"""Seconds in which hints gather."""
_LISTEN_AGAIN_AFTER: Final = 1.0


class Exactly(float):
    """Seconds until a time that is known: a pause that is not jittered."""


class Service(ABC):
    """Subclasses say what to do, and when to do it again."""

    longest_pause = 10.0
    """Seconds, after failures."""

    def __init__(self) -> None:
        self._nudged = asyncio.Event()

    @abstractmethod
    async def act(self) -> float:
        """Do it once, and return in how many seconds to do it again: about so many, unless it says exactly."""

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
            except Exception as error:
                self.failed()
                failures += 1
                pause = min(0.25 * 2 ** min(failures, 10), self.longest_pause)
                # What is nobody's fault but ours must not end a service either: workers would be taken for dead.
                is_known = isinstance(error, HoldfastError)
                log.warning("%s: %s", type(self).__name__.lower(), error, exc_info=None if is_known else error)
            # Jittered, so that many workers don't come to the database as one.
            jitter = 1.0 if isinstance(pause, Exactly) else random.uniform(0.8, 1.2)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * jitter):
                    await self._nudged.wait()


class HintedService(Service):
    """Is also done when there is a hint that concerns it."""

    kind: ClassVar[HintKind]
    gathers_for = SOONEST
    """Seconds after a hint until the next one is looked at."""

    def __init__(self, store: Callable[[], Store]) -> None:
        super().__init__()
        self._store = store

    def concerns(self, hint: Hint) -> bool:
        """Whether it is worth doing it now."""
        return True

    async def run(self) -> None:
        listener = asyncio.create_task(self._listen(), name=f"holdfast-{type(self).__name__.lower()}-hints")
        try:
            await super().run()
        finally:
            listener.cancel()

    async def _listen(self) -> None:
        while True:
            try:
                async with self._store().changes([self.kind]) as hints:
                    async for hint in hints:
                        if self.concerns(hint):
                            self.nudge()
                            await asyncio.sleep(self.gathers_for)
            except HoldfastError:
                pass  # what happens meanwhile is found without hints
            await asyncio.sleep(_LISTEN_AGAIN_AFTER)
