"""Heartbeats: for each of our workers, say that it lives and what it holds, and pass on what the store answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import UUID

from holdfast.liveness import BEAT_EVERY
from holdfast.maintenance.service import HintedService
from holdfast.store import Beaten, Held, Hint, HintKind, Store

log = logging.getLogger("holdfast.worker")


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
        for ward in list(self._wards()):
            if not ward.is_working:
                continue  # it has ended while others were beaten for
            held = ward.held()
            answer = await self._store().beat(ward.worker, held)
            if answer.released:
                log.warning("%d jobs were given back: the answer to their claim was lost", len(answer.released))
            ward.beaten(answer, held)
        # The jitter of services is a fifth; a beat must rather be early than late.
        return BEAT_EVERY.total_seconds() * 0.8
