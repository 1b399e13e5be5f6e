"""Heartbeats: for each of our workers, say that it lives and what it holds, and pass on what the store answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from uuid import UUID

from holdfast.errors import HoldfastError
from holdfast.liveness import BEAT_EVERY
from holdfast.maintenance.service import HintedService
from holdfast.store import Beaten, Held, Hint, HintKind, Store

log = logging.getLogger("holdfast.worker")

_AT_ONCE: Final = 8
"""Beats that are under way together: they may share one connection, and each is given up if that takes too long."""
_AGAIN_AFTER: Final = 1.0
"""Seconds, after a beat that failed for no reason that we know."""


class Ward(Protocol):
    """A worker that somebody beats for."""

    @property
    def worker(self) -> UUID: ...
    @property
    def is_working(self) -> bool: ...
    def held(self) -> Held: ...
    def beaten(self, answer: Beaten, held: Held) -> None:
        """The store has answered to what was held."""
        ...


class Heartbeat(HintedService):
    longest_pause = 1.0
    kind = HintKind.CONTROL

    def __init__(self, store: Callable[[], Store], wards: Callable[[], Iterable[Ward]]) -> None:
        super().__init__(store)
        self._wards = wards

    def concerns(self, hint: Hint) -> bool:
        """One of ours is to be quiet. Hints that name nobody come at any change of a file, and each beat is one."""
        return not hint.ids.isdisjoint(ward.worker for ward in self._wards())

    async def act(self) -> float:
        """Each beat is on its own: whatever happens to one, the others must not be taken for dead."""
        wards, turn = list(self._wards()), asyncio.Semaphore(_AT_ONCE)
        answers = await asyncio.gather(*(self._beat_in_turn(ward, turn) for ward in wards), return_exceptions=True)
        # The jitter of services is a fifth; a beat must rather be early than late.
        pause = BEAT_EVERY.total_seconds() * 0.8
        for ward, error in zip(wards, answers, strict=True):
            if isinstance(error, BaseException) and not isinstance(error, HoldfastError):
                log.error("the heartbeat of worker %s failed, trying again", ward.worker, exc_info=error)
                pause = _AGAIN_AFTER
        for error in answers:
            if isinstance(error, HoldfastError):
                raise error  # the database does not answer, which is told once
        return pause

    async def _beat_in_turn(self, ward: Ward, turn: asyncio.Semaphore) -> None:
        async with turn:
            await self._beat_for(ward)

    async def _beat_for(self, ward: Ward) -> None:
        if not ward.is_working:
            return  # it has ended while others were beaten for
        held = ward.held()
        answer = await self._store().beat(ward.worker, held)
        if answer.released:
            log.warning("%d jobs were given back: the answer to their claim was lost", len(answer.released))
        ward.beaten(answer, held)
