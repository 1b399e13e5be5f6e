"""The ticker: moves jobs whose time has come to ready, and buries those that have expired."""

from __future__ import annotations

import logging
from typing import Final

from holdfast.maintenance.service import SOONEST, HintedService
from holdfast.store import HintKind

log = logging.getLogger("holdfast.maintenance")

_LOOK_EVERY: Final = 2.5
"""Hints tell when something is scheduled; this is for when they don't."""
_EARLY: Final = 0.8
"""A nap is up to a fifth longer than was asked for, and what a rate allows while it lasts is lost."""


class Ticker(HintedService):
    kind = HintKind.LATER

    async def act(self) -> float:
        tick = await self._store().tick()
        if tick.expired:
            log.warning("%d jobs expired before they could start", tick.expired)
        if tick.next_in is None:
            return _LOOK_EVERY
        return min(max(tick.next_in.total_seconds() * _EARLY, SOONEST), _LOOK_EVERY)
