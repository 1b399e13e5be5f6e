"""Who is dead: judged by an observer's own clock.

A worker is judged by its beat number, not by a time of day: no clock that jumps and no
database that was away for a while can make everybody look dead at once. The observer
must itself have watched the number stand still.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

BEAT_EVERY: Final = timedelta(seconds=10)
DEAD_AFTER: Final = timedelta(seconds=30)
WATCHED_FOR: Final = timedelta(seconds=12)
FREE_FOR: Final = timedelta(seconds=1.5)
"""How long a lock must be seen free if its holder may live on without it, as with one that a connection holds: a worker
says at once that it has lost its lock, but may have to connect anew for that, to a server that has just come back."""
LONGEST_GAP: Final = timedelta(seconds=5)
"""Between two looks; after a longer one the observer has not watched, it was away, or the database was."""


class Sighting(msgspec.Struct, frozen=True):
    """What the store shows of a worker. `is_locked` is None where the store can't see its lock.

    `free_for` is how long its lock must be seen free before that means its end.
    """

    worker: UUID
    beat: int
    age: timedelta
    is_locked: bool | None = None
    free_for: timedelta = FREE_FOR


class _Watch(NamedTuple):
    """Since when a worker has stood at a beat, and its lock been free there, by the observer's clock."""

    beat: int
    stands_since: float
    free_since: float | None


class Observer:
    """Remembers since when each worker has stood at the same beat, and since when its lock has been free."""

    def __init__(self) -> None:
        self._watched: dict[UUID, _Watch] = {}
        self._looked_at = 0.0

    def forget(self) -> None:
        """The connection broke: what was seen before it proves nothing any more."""
        self._watched.clear()

    def observe(self, sightings: Iterable[Sighting], monotonic: float) -> dict[UUID, int]:
        """Return the workers that are gone, each with the beat at which it stands.

        A free lock shortens the wait, and a held one never lengthens it: a stopped process holds its locks too. It must
        have been free for a while, however long the worker has stood at its beat: who lives and has lost it says so.
        """
        if monotonic - self._looked_at > LONGEST_GAP.total_seconds():
            self.forget()
        self._looked_at = monotonic
        watched: dict[UUID, _Watch] = {}
        gone: dict[UUID, int] = {}
        for sighting in sightings:
            watch = _watch_on(self._watched.get(sighting.worker), sighting, monotonic)
            watched[sighting.worker] = watch
            if _is_gone(sighting, watch, monotonic):
                gone[sighting.worker] = sighting.beat
        self._watched = watched
        return gone


def _watch_on(last: _Watch | None, sighting: Sighting, monotonic: float) -> _Watch:
    if last is None or last.beat != sighting.beat:
        last = _Watch(sighting.beat, monotonic, None)
    if sighting.is_locked is not False:
        return last._replace(free_since=None)
    return last if last.free_since is not None else last._replace(free_since=monotonic)


def _is_gone(sighting: Sighting, watch: _Watch, monotonic: float) -> bool:
    if watch.free_since is not None and timedelta(seconds=monotonic - watch.free_since) >= sighting.free_for:
        return True
    # Its age is told by a clock that may have been set back, so having watched for long enough is enough.
    stood = timedelta(seconds=monotonic - watch.stands_since)
    return stood >= DEAD_AFTER or (sighting.age >= DEAD_AFTER and stood >= WATCHED_FOR)
