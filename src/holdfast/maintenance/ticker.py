"""The ticker: moves jobs whose time has come to ready, and buries those that have expired."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.maintenance.service import Service
from holdfast.store import HintKind, Store

log = logging.getLogger("holdfast.maintenance")

_LOOK_EVERY: Final = 2.5
"""Hints tell when something is scheduled; this is for when they don't."""
_SOONEST: Final = 0.02


class Ticker(Service):
    def __init__(self, store: Callable[[], Store]) -> None:
        super().__init__()
        self._store = store

    async def act(self) -> float:
        tick = await self._store().tick()
        if tick.expired:
            log.warning("%d jobs expired before they could start", tick.expired)
        if tick.next_in is None:
            return _LOOK_EVERY
        return min(max(tick.next_in.total_seconds(), _SOONEST), _LOOK_EVERY)

    async def run(self) -> None:
        listener = asyncio.create_task(self._listen(), name="holdfast-ticker-hints")
        try:
            await super().run()
        finally:
            listener.cancel()

    async def _listen(self) -> None:
        while True:
            try:
                async with self._store().changes([HintKind.LATER]) as hints:
                    async for _ in hints:
                        self.nudge()
                        await asyncio.sleep(_SOONEST)
            except HoldfastError:
                pass  # what is scheduled meanwhile is found without hints
            await asyncio.sleep(1.0)
