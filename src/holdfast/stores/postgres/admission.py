"""How full each queue is, as far as this process knows: most jobs are let in without asking.

A queue is looked at again when that was too long ago, or when what was let in since then may have brought it near its
bound; the database then decides, and counts if need be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast.errors import QueueFull
from holdfast.store import QueueRecord

COMFORTABLE: Final = 0.75
"""Up to this part of a bound jobs are let in on the strength of an earlier look."""
LARGE: Final = 10_000
"""A smaller bound is always counted."""
FRESH_FOR: Final = 0.25
_SHARE: Final = 20
"""Counting may take a twentieth of the time."""


class Depth(msgspec.Struct):
    """A queue, as holdfast.enqueue found it."""

    waiting: int
    scheduled: int
    bound: int
    scheduled_bound: int
    is_certain: bool = False
    measured_at: int | None = None
    measured_in: int = 0
    is_old: bool = False
    """It was counted too long ago, but is not to be counted by the way."""


class Lack(msgspec.Struct):
    """Why a call was refused: so many jobs were in the queue, and so many more would have come."""

    queue: str
    waiting: int
    scheduled: int
    bound: int
    scheduled_bound: int
    more_waiting: int
    more_scheduled: int

    def refusal(self) -> QueueFull:
        found = QueueRecord(self.queue, self.waiting, self.scheduled, self.bound, None, self.scheduled_bound)
        refusal = found.refuse(self.more_waiting, self.more_scheduled)
        assert refusal is not None
        return refusal


class Knowledge(msgspec.Struct):
    """A queue as it was at the last look, with what this process has let in since."""

    looked_at: float
    depth: Depth
    added: int = 0

    def has_room(self, more: int) -> bool:
        return (
            self.depth.waiting + more <= COMFORTABLE * self.depth.bound
            and self.depth.scheduled + more <= COMFORTABLE * self.depth.scheduled_bound
        )

    @property
    def fresh_for(self) -> float:
        """The longer it takes to count, the longer it will do, so that counting takes no more than its share."""
        return max(FRESH_FOR, _SHARE * self.depth.measured_in / 1_000_000)

    def count(self, number: int) -> None:
        self.added += number
        self.depth.waiting += number
        self.depth.scheduled += number


class Admission:
    """What this process knows of the queues it enqueues to. Forgotten, it is learnt again with the next enqueue."""

    def __init__(self) -> None:
        self._known: dict[str, Knowledge] = {}

    def admits(self, more: Mapping[str, int], monotonic: float) -> bool:
        """Whether so many jobs for these queues may go in without a look, each of them."""
        return all(self._admits(queue, number, monotonic) for queue, number in more.items())

    def _admits(self, queue: str, more: int, monotonic: float) -> bool:
        known = self._known.get(queue)
        if known is None or monotonic - known.looked_at > known.fresh_for:
            return False
        return min(known.depth.bound, known.depth.scheduled_bound) >= LARGE and known.has_room(more)

    def is_tight(self, more: Mapping[str, int]) -> bool:
        """Whether, for all that this process has let in itself, one of the queues may be near its bound."""
        return any(queue in self._known and not self._known[queue].has_room(number) for queue, number in more.items())

    def count(self, more: Mapping[str, int]) -> None:
        """So many jobs went in. When they are due does not matter here: they count as both."""
        for queue, number in more.items():
            known = self._known.get(queue)
            if known is not None:
                known.count(number)

    def learn(self, found: Mapping[str, Depth], monotonic: float) -> None:
        for queue, depth in found.items():
            before = self._known.get(queue)
            if before is not None and not depth.is_certain:
                # What this process has let in meanwhile was perhaps not there yet when somebody counted.
                if before.depth.measured_at == depth.measured_at:
                    depth.waiting, depth.scheduled = before.depth.waiting, before.depth.scheduled
                else:
                    depth.waiting += before.added
                    depth.scheduled += before.added
            self._known[queue] = Knowledge(monotonic, depth)

    def forget(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self._known.pop(queue, None)
