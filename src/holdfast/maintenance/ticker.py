"""The ticker: moves jobs whose time has come to ready, opens rates, and buries jobs that have expired.

What a rate allows while nobody knows of it is lost, so the ticker is there when one opens. Jobs that are due one after
the other may gather for a moment: each tick costs the same, and every worker ticks.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

from holdfast.maintenance.service import SOONEST, Exactly, HintedService
from holdfast.store import HintKind

log = logging.getLogger("holdfast.maintenance")

_LOOK_EVERY: Final = 2.5
"""Hints tell when something is scheduled; this is for when they don't."""
_SHORTEST: Final = 0.002
"""Seconds of a nap until a rate opens."""
_TICK_SHARE: Final = 5
"""No more than a fifth of the time is spent with ticks, however slow the database and however many the rates."""
_EARLY: Final = 0.0005
"""Seconds by which a loop may call early: then there would be nothing to do yet, and another nap."""
_NEAR: Final = 0.5
"""Seconds until a rate opens that has a short window, or is used all the time: the next hint may be of it, too."""
_NEAR_FOR: Final = 1.0
"""Seconds in which hints are looked at sooner, after there was such a rate."""


class Ticker(HintedService):
    kind = HintKind.LATER
    _is_near_until = 0.0

    async def act(self) -> float:
        time = asyncio.get_running_loop().time
        began_at = time()
        tick = await self._store().tick()
        now = time()
        shortest = max(_SHORTEST, (_TICK_SHARE - 1) * (now - began_at))
        if tick.expired:
            log.warning("%d jobs expired before they could start", tick.expired)
        if tick.opens_in is not None and tick.opens_in.total_seconds() < _NEAR:
            self._is_near_until = now + _NEAR_FOR
        self.gathers_for = min(shortest, SOONEST) if now < self._is_near_until else SOONEST
        # Right after others, the next jobs may gather.
        return min(_nap(tick.next_in, SOONEST if tick.ripened else shortest), _nap(tick.opens_in, shortest))


def _nap(left: timedelta | None, shortest: float) -> float:
    if left is None or left.total_seconds() >= _LOOK_EVERY:
        return _LOOK_EVERY
    if not left:
        return SOONEST  # it is due and could not be had: it is the next of many, or somebody else is at it
    return Exactly(max(left.total_seconds() + _EARLY, shortest))
