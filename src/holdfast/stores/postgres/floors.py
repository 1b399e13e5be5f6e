"""Where a claim may begin to look.

Claimed jobs leave dead entries at the front of the index, and while any old transaction is open they can't be swept up:
a claim that began at the front would walk over all of them, again and again. So each claimer keeps
a floor per queue, priority and lane, below which nothing is left.

Places are drawn from one sequence, by transactions that have their number already. So whatever a transaction draws
that begins after a snapshot lies above everything that was drawn before that snapshot. A place that a claim reached may
become the floor once all transactions that were running at that time have ended, if a claim then finds nothing below.
What it could not see, since somebody else had it locked and then let go of it, is found by a sweep from the
very front, now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.native import make_lock

LANES: Final = 20
"""Ten priorities, from the highest, with two lanes each: what was given back, and what is fresh."""
_SOONEST_SWEEP: Final = 1.0
_LATEST_SWEEP: Final = 60.0
_SWEEP_SHARE: Final = 50
"""A sweep may take a fiftieth of the time."""
_MOST_MARKS: Final = 100


class Mark(NamedTuple):
    """Everything up to `place` was drawn before the transaction `next_transaction` began."""

    next_transaction: int
    place: int


class Snapshot(NamedTuple):
    """Which transactions a claim could see: all before `oldest` have ended, and none from `next` on."""

    oldest: int
    next: int


class Floor:
    """Of one queue, priority and lane."""

    __slots__ = ("_marks", "place", "reached")

    def __init__(self) -> None:
        self.place = 0
        self.reached = 0
        """The highest place that a claim has taken."""
        self._marks: deque[Mark] = deque()

    def rise(self, snapshot: Snapshot, reached_before: int, highest: int, is_exhausted: bool) -> None:
        """A claim has looked from this floor on, after some place had been reached.

        It took jobs up to `highest`, 0 for none, and all that it saw if the lane is exhausted.
        """
        while self._marks and self._marks[0].next_transaction <= snapshot.oldest:
            if not is_exhausted and highest < self._marks[0].place:
                break  # there may be more below it than the claim could take
            self.place = max(self.place, self._marks.popleft().place)
        if reached_before > (self._marks[-1].place if self._marks else self.place):
            if len(self._marks) == _MOST_MARKS:
                self._marks.pop()  # the later one says more, and an old transaction may stay for hours
            self._marks.append(Mark(snapshot.next, reached_before))
        self.reached = max(self.reached, highest)


class Look(NamedTuple):
    """Where a claim begins in each lane, and what had been reached there before it was sent.

    A sweep begins at the very front. What another claim reaches meanwhile, this one's snapshot may not know.
    """

    places: list[int]
    reached: list[int]
    is_sweep: bool


class QueueFloors:
    """The floors of one queue, and when it is to be swept."""

    def __init__(self) -> None:
        self._floors = [Floor() for _ in range(LANES)]
        self._sweep_at = 0.0
        self._lock = make_lock()  # event loops in several threads may claim from it

    def look(self, monotonic: float) -> Look:
        reached = [floor.reached for floor in self._floors]
        if monotonic >= self._sweep_at:
            return Look([0] * LANES, reached, is_sweep=True)
        return Look([floor.place for floor in self._floors], reached, is_sweep=False)

    def learn(self, look: Look, taken: Iterable[tuple[int, int]], slots: int, snapshot: Snapshot) -> None:
        """From a claim of so many slots: the lane and place of each job that it took, as its snapshot shows them."""
        highest = [0] * LANES
        count = 0
        for lane, place in taken:
            count += 1
            highest[lane] = max(highest[lane], place)
        last = max((lane for lane in range(LANES) if highest[lane]), default=0)
        is_full = count >= slots
        with self._lock:
            for lane, floor in enumerate(self._floors):
                # A claim that was filled did not look into the lanes behind the last one it took from.
                if not is_full or lane <= last:
                    floor.rise(snapshot, look.reached[lane], highest[lane], is_exhausted=not is_full or lane < last)

    def swept(self, started: float, ended: float) -> None:
        """A sweep is over; the longer it took, the later comes the next."""
        self._sweep_at = ended + min(max((ended - started) * _SWEEP_SHARE, _SOONEST_SWEEP), _LATEST_SWEEP)


class Floors:
    """The floors of a claimer. They are forgotten with its connection: another server has another history."""

    def __init__(self) -> None:
        self._queues: dict[str, QueueFloors] = {}

    def forget(self) -> None:
        self._queues = {}

    def of(self, queue: str) -> QueueFloors:
        floors = self._queues.get(queue)
        if floors is None:
            floors = self._queues[queue] = QueueFloors()
        return floors


def lane_number(priority: int, lane: int) -> int:
    """In the order of starting."""
    return 2 * (9 - priority) + lane
