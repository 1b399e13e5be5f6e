"""Who is dead: judged by an observer's own clock.

A worker is judged by its beat number, not by a time of day: no clock that jumps and no
database that was away for a while can make everybody look dead at once. The observer
must itself have watched the number stand still.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final
from uuid import UUID

import msgspec

BEAT_EVERY: Final = timedelta(seconds=10)
DEAD_AFTER: Final = timedelta(seconds=30)
WATCHED_FOR: Final = timedelta(seconds=12)
WATCHED_FOR_LOCK: Final = timedelta(seconds=3)
LONGEST_GAP: Final = timedelta(seconds=5)
"""Between two looks; after a longer one the observer has not watched, it was away, or the database was."""


class Sighting(msgspec.Struct, frozen=True):
    """What the store shows of a worker. `is_locked` is None where the store can't see its lock."""

    worker: UUID
    beat: int
    age: timedelta
    is_locked: bool | None = None


class Observer:
    """Remembers since when each worker has stood at the same beat."""

    def __init__(self) -> None:
        self._watched: dict[UUID, tuple[int, float]] = {}
        self._looked_at = 0.0

    def forget(self) -> None:
        """The connection broke: what was seen before it proves nothing any more."""
        self._watched.clear()

    def observe(self, sightings: Iterable[Sighting], monotonic: float) -> dict[UUID, int]:
        """Return the workers that are gone, each with the beat at which it stands.

        A free lock shortens the wait, and a held one never lengthens it: a stopped process holds its locks too.
        """
        if monotonic - self._looked_at > LONGEST_GAP.total_seconds():
            self.forget()
        self._looked_at = monotonic
        watched: dict[UUID, tuple[int, float]] = {}
        gone: dict[UUID, int] = {}
        for sighting in sightings:
            beat, since = self._watched.get(sighting.worker, (sighting.beat, monotonic))
            if beat != sighting.beat:
                since = monotonic
            watched[sighting.worker] = (sighting.beat, since)
            if _is_gone(sighting, timedelta(seconds=monotonic - since)):
                gone[sighting.worker] = sighting.beat
        self._watched = watched
        return gone


def _is_gone(sighting: Sighting, stood: timedelta) -> bool:
    if sighting.is_locked is False and stood >= WATCHED_FOR_LOCK:
        return True
    # Its age is told by a clock that may have been set back, so having watched for long enough is enough.
    return stood >= DEAD_AFTER or (sighting.age >= DEAD_AFTER and stood >= WATCHED_FOR)
