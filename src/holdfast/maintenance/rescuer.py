"""The rescuer: watches all workers, and takes over the jobs of those that are gone.

It looks every two seconds, and more often as soon as one of them looks suspicious. Any number of rescuers may watch:
who is dead is judged by each of them for itself, and declared once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from holdfast.clock import Clock
from holdfast.liveness import BEAT_EVERY, Observer, Sighting
from holdfast.maintenance.service import Service
from holdfast.store import Store

log = logging.getLogger("holdfast.maintenance")

_CALM: Final = 2.0
_ALARMED: Final = 0.25
_SWEEP_EVERY: Final = 5
"""Looks after which orphans are looked for even though nobody has died: a rescue may have been left half done."""
_LATE: Final = 1.5


class Rescuer(Service):
    def __init__(self, store: Callable[[], Store], clock: Clock) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._observer = Observer()
        self._looks = 0
        self._may_be_more = False
        """The last rescue took over a batch of jobs; others may be left."""
        self.rescued = 0

    def failed(self) -> None:
        self._observer.forget()

    async def act(self) -> float:
        store = self._store()
        sightings = await store.sightings()
        gone = self._observer.observe(sightings, self._clock.monotonic())
        self._looks += 1
        if gone or self._may_be_more or self._looks % _SWEEP_EVERY == 1:
            jobs = await store.rescue(gone)
            self._may_be_more = bool(jobs)
            for worker in gone:
                log.warning("worker %s is gone", worker)
            if jobs:
                self.rescued += len(jobs)
                log.warning("rescued %d jobs of workers that are gone", len(jobs))
                return 0.0
        return _ALARMED if any(map(_is_suspicious, sightings)) else _CALM


def _is_suspicious(sighting: Sighting) -> bool:
    return sighting.is_locked is False or sighting.age > _LATE * BEAT_EVERY
