"""Heartbeats: for each of our workers, say that it lives and what it holds, and pass on what the store answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import UUID

from holdfast.liveness import BEAT_EVERY
from holdfast.maintenance.service import Service
from holdfast.store import Beaten, Held, Store

log = logging.getLogger("holdfast.worker")


class Ward(Protocol):
    """A worker that somebody beats for."""

    @property
    def worker(self) -> UUID: ...
    def held(self) -> Held: ...
    def beaten(self, answer: Beaten) -> None: ...


class Heartbeat(Service):
    longest_pause = 1.0

    def __init__(self, store: Callable[[], Store], wards: Callable[[], Iterable[Ward]]) -> None:
        super().__init__()
        self._store = store
        self._wards = wards

    async def act(self) -> float:
        for ward in list(self._wards()):
            answer = await self._store().beat(ward.worker, ward.held())
            if answer.released:
                log.warning("%d jobs were given back: the answer to their claim was lost", len(answer.released))
            ward.beaten(answer)
        # The jitter of services is a fifth; a beat must rather be early than late.
        return BEAT_EVERY.total_seconds() * 0.8
