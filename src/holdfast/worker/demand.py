"""Demand: which queues to ask for how many jobs now. Pure: it is told what happens, and the time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from holdfast.worker.reserve import Reserve
from holdfast.worker.slots import Slots, share

LARGEST_CLAIM: Final = 1000
MOST_AHEAD: Final = 2 * LARGEST_CLAIM
"""Jobs that one process holds and has not started: one claim's are run while the next one's are on their way."""
MOST_BEHIND: Final = 2 * LARGEST_CLAIM
"""Jobs of one pool that wait for others of their order."""
_AHEAD_FOR: Final = 0.05
"""Seconds of work that are fetched ahead. Long jobs are never waited for by others: nothing is fetched behind them."""
_MOST_AHEAD_FOR: Final = 0.2
"""The same where a claim takes long to be answered, since there must be work until then."""
_BEHIND_FOR: Final = 0.5
"""Seconds of work that are fetched behind other jobs of their order."""
_FEWEST_BEHIND: Final = 16
"""So many at the least, unless they had to be given back: one order alone ends too few jobs to know their speed."""
_TRAIN: Final = 8
"""Jobs of one order that are wanted at once, where all jobs are under orders."""
_LONGEST_REST: Final = 0.02
"""Seconds."""
_RESTS_FOR: Final = 8
"""Times as long as a claim took that brought little: settlements wait for claims, and everybody for settlements."""
_WINDOW: Final = 0.02
"""Seconds of work over which a rate is measured: in shorter ones, others on the same CPU count for too much."""
_RISES_IN: Final = 0.1
_SILENCE: Final = 0.035
"""Seconds of work without an end after which jobs are long, whatever others were."""
_LEAST_TRUST: Final = 0.01
_TRUST_AGAIN_AFTER: Final = 20.0
"""Seconds."""
_FORGETS_IN: Final = 0.5
"""Seconds without work after which the next jobs may be of another kind."""


class Demand:
    """Counts what runs and what waits in each pool, and knows which queues may have work.

    Short jobs are over before the next claim could be answered, so as many are fetched ahead as can be finished in a
    moment; a pool whose jobs take longer than that fetches none. Time in which a pool had nothing to do says nothing
    about its jobs, and is not counted: a slow disk would make for small claims, and small claims for a slower pool.
    Where short and long ones are mixed, some that were fetched have to be given back: then fewer are fetched for some
    time.
    """

    def __init__(self, slots: Slots) -> None:
        self._sizes = [pool.size for pool in slots.pools]
        self._pool_of = {queue: number for number, pool in enumerate(slots.pools) for queue in pool.queues}
        self._common = next((number for number, pool in enumerate(slots.pools) if not pool.queues), None)
        self._running = [0] * len(self._sizes)
        self._ahead = [0] * len(self._sizes)
        self._behind = [0] * len(self._sizes)
        """How many were fetched that could not start if there were a slot."""
        self._followers = [0] * len(self._sizes)
        """How many of those could by now."""
        self._finished = [0] * len(self._sizes)
        self._rates = [0.0] * len(self._sizes)
        self._busy = [0.0] * len(self._sizes)
        """Seconds with something to do, since the rate was last measured."""
        self._silent = [0.0] * len(self._sizes)
        """The same, since a job was last seen to have ended."""
        self._seen = [0] * len(self._sizes)
        self._idle_since: list[float | None] = [None] * len(self._sizes)
        self._trust = [1.0] * len(self._sizes)
        self._trust_behind = [1.0] * len(self._sizes)
        self._counted_at: float | None = None
        self._ahead_for = _AHEAD_FOR
        self._hopeful: dict[str, None] = {}
        self._renewed: set[str] = set()
        self._ordered: set[str] = set()
        """Queues that gave jobs under orders when they last gave any, and no others."""
        self._held_back: list[set[str]] = [set() for _ in self._sizes]
        """Queues that gave as many as could start at once, and may have more that must not be fetched ahead."""
        self._turns = [0] * len(self._sizes)
        self._reserve = Reserve(self._sizes)
        self._kept = self._reserve.kept
        self.hope_for(self._pool_of)

    def pool_of(self, queue: str) -> int | None:
        """The pool that a queue's jobs run in; None if this process does not serve it."""
        return self._pool_of.get(queue, self._common)

    # ── queues that may have work ────────────────────────────────────────────────────────────────────────────────────

    def hope_for(self, queues: Iterable[str]) -> bool:
        """These may have work. Whether any of them is served here."""
        served = [queue for queue in queues if self.pool_of(queue) is not None]
        self._hopeful.update(dict.fromkeys(served))
        self._renewed.update(served)
        return bool(served)

    def answered(
        self, asked: Mapping[str, int], got: Mapping[str, int], at_once: Mapping[str, int] | None = None
    ) -> None:
        """The last claim was answered. A queue that gave less than it was asked for is empty.

        Unless there has been hope for it since it was asked: that may be work which the claim came too early for.
        If it gave as many as could start `at_once`, it may have more that are under a rate: there is hope again as soon
        as one of them could start.
        """
        for queue, number in asked.items():
            given = got.get(queue, 0)
            if given < number and queue not in self._renewed:
                pool = self.pool_of(queue)
                if at_once is not None and pool is not None and given >= at_once.get(queue, 0):
                    if self.has_slot(pool):
                        continue
                    self._held_back[pool].add(queue)
                self._hopeful.pop(queue, None)

    def took(self, seconds: float) -> None:
        """So long it was until the last claim was answered."""
        self._ahead_for += 0.2 * (min(max(_AHEAD_FOR, 5 * seconds), _MOST_AHEAD_FOR) - self._ahead_for)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fetched(self, pool: int) -> None:
        self._ahead[pool] += 1

    def dropped(self, pool: int, *, is_follower: bool = False) -> None:
        """A job that was fetched will not be started here."""
        (self._followers if is_follower else self._ahead)[pool] -= 1

    def overestimated(self, pool: int) -> None:
        """Some of those that were fetched ahead found no slot in time."""
        self._trust[pool] = max(self._trust[pool] / 2, _LEAST_TRUST)

    def fetched_behind(self, pool: int) -> None:
        """One that can't start before another one has ended, whether there is a slot for it or not."""
        self._behind[pool] += 1

    def came_forward(self, pool: int) -> None:
        """It can, from now on."""
        self._behind[pool] -= 1
        self._followers[pool] += 1

    def dropped_behind(self, pool: int) -> None:
        """It will not be started here."""
        self._behind[pool] -= 1

    def overestimated_behind(self, pool: int) -> None:
        """Some of those had to wait for too long."""
        self._trust_behind[pool] = max(self._trust_behind[pool] / 2, _LEAST_TRUST)

    def has_slot(self, pool: int) -> bool:
        return self._running[pool] < self._sizes[pool] - self._kept[pool]

    def has_kept_slot(self, pool: int) -> bool:
        """For a job that must start, which may have one that is kept free for such."""
        return self._running[pool] < self._sizes[pool]

    def started(self, pool: int, *, is_follower: bool = False) -> None:
        (self._followers if is_follower else self._ahead)[pool] -= 1
        self._running[pool] += 1

    def finished(self, pool: int, *, was_short: bool = True) -> None:
        """A job that may not be fetched ahead says nothing about how many might be."""
        self._running[pool] -= 1
        self._finished[pool] += was_short
        if self._held_back[pool]:
            self._hopeful.update(dict.fromkeys(self._held_back[pool]))
            self._held_back[pool].clear()

    def is_idle(self, pool: int) -> bool:
        """Whether it has nothing to do."""
        in_hand = self._ahead[pool], self._behind[pool], self._followers[pool]
        return not self._running[pool] and not any(in_hand)

    def went_idle(self, pool: int, now: float) -> None:
        """The last of its jobs is over."""
        self._count_busy(now)
        self._idle_since[pool] = now

    def came(self, queues: Collection[str], now: float, ordered: Iterable[str] = ()) -> None:
        """Jobs of these queues have come, and are about to be fetched. All of the `ordered` ones are under orders."""
        self._count_busy(now)
        self._ordered.difference_update(queues)
        self._ordered.update(ordered)
        for queue in queues:
            pool = self.pool_of(queue)
            if pool is not None and (since := self._idle_since[pool]) is not None:
                self._idle_since[pool] = None
                if now - since > _FORGETS_IN:
                    self._rates[pool] = 0.0

    @property
    def running(self) -> int:
        return sum(self._running)

    # ── what to ask for ──────────────────────────────────────────────────────────────────────────────────────────────

    def wanted(self, now: float, most: int) -> dict[str, int]:
        """How many jobs of each queue to ask for, at most so many in all."""
        self._measure(now)
        wanted: dict[str, int] = {}
        self._renewed.clear()
        for pool, size in enumerate(self._sizes):
            queues = [queue for queue in self._hopeful if self.pool_of(queue) == pool]
            if not queues:
                continue
            ahead = self._most_ahead(pool)
            # Followers have a share of the slots, and don't keep others from being fetched for theirs.
            room = size - self._running[pool] + ahead - self._ahead[pool]
            if self._ordered.issuperset(queues):
                room = self._room_for_trains(pool, room)
            # One claim for many jobs costs as much as one for few, so it is worth waiting until half of it is used up.
            if room > 0 and (room * 2 >= ahead or self._ahead[pool] == 0):
                room = min(room, most)
                most -= room
                wanted |= share(room, queues, self._turns[pool])
                self._turns[pool] += 1
        return wanted

    def _room_for_trains(self, pool: int, room: int) -> int:
        """How much of this room is for the first jobs of trains: a few long trains cost less than many short ones."""
        in_trains, most = self._behind[pool] + self._followers[pool], self._most_behind(pool)
        free = self._sizes[pool] - self._running[pool]
        if not in_trains:
            return room
        return min(room, max(free, int(most - in_trains) // _TRAIN)) if free or 2 * in_trains <= most else 0

    # ── what must start when it comes ────────────────────────────────────────────────────────────────────────────────

    def keep_reserve(self, wanted: Mapping[str, int]) -> None:
        """From now on until `let_go`, in the pools that are asked for, if others wait there for slots."""
        for pool in {self.pool_of(queue) for queue in wanted}:
            if pool is not None and (self._ahead[pool] or self._behind[pool] or self._followers[pool]):
                self._reserve.keep(pool)

    @property
    def has_reserve(self) -> bool:
        """Whether all the slots that are to be kept free are."""
        return all(self._free(pool) >= self._kept[pool] for pool in range(len(self._sizes)))

    def let_go(self, came: Mapping[int, int]) -> list[int]:
        """The claim was answered, and brought so many that had to start. Which pools have slots for others now."""
        return self._reserve.let_go(came)

    def _free(self, pool: int) -> int:
        return self._sizes[pool] - self._running[pool]

    def at_once(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """How many of those that were asked for could start when they come, for certain."""
        free = [min(self._free(pool), self._kept[pool] or size) for pool, size in enumerate(self._sizes)]
        found: dict[str, int] = {}
        for queue, number in wanted.items():
            pool = self.pool_of(queue)
            if pool is not None:
                found[queue] = min(number, max(0, free[pool]))
                free[pool] -= found[queue]
        return found

    def behind(self, wanted: Mapping[str, int], most: int) -> int:
        """How many more to ask for that are behind others of their order, at most so many.

        Nobody else could run them meanwhile, so it does no harm to have them for longer than others.
        """
        pools = {self.pool_of(queue) for queue in wanted}
        room = 0
        for pool in range(len(self._rates)):
            # Where followers have to wait for slots, more of them would be of no use.
            if pool in pools and self._followers[pool] <= max(self._most_ahead(pool), self._sizes[pool]):
                room += max(0, int(self._most_behind(pool)) - self._behind[pool] - self._followers[pool])
        return max(0, min(room, most))

    def _most_behind(self, pool: int) -> float:
        return min(max(self._rates[pool] * _BEHIND_FOR, _FEWEST_BEHIND), MOST_BEHIND) * self._trust_behind[pool]

    def _most_ahead(self, pool: int) -> int:
        return min(MOST_AHEAD, int(self._rates[pool] * self._ahead_for * self._trust[pool]))

    def rest(self, asked: int, got: int, seconds: float) -> float:
        """How many seconds to let pass after a claim that took so many seconds, before the next one.

        While jobs of an order are in hand, each settlement lets another order's go on: asked after each of them, the
        store would give a few at a time, and each claim costs as much as a settlement of many.
        """
        return min(_RESTS_FOR * seconds, _LONGEST_REST) if any(self._behind) and 4 * got < asked else 0.0

    def _measure(self, now: float) -> None:
        self._count_busy(now)
        for pool, busy in enumerate(self._busy):
            finished = self._finished[pool]
            if finished != self._seen[pool]:
                self._seen[pool] = finished
                self._silent[pool] = 0.0
            is_silent = self._silent[pool] > _SILENCE
            if is_silent or busy >= _WINDOW:
                rate = 0.0 if is_silent else finished / busy
                # Down at once, since jobs that have become slow must not be waited for. Up in a while, since a few
                # short ones in a row, among long ones, say nothing.
                weight = min(1.0, busy / _RISES_IN) if rate > self._rates[pool] else 1.0
                self._rates[pool] += weight * (rate - self._rates[pool])
                self._finished[pool] = self._seen[pool] = 0
                self._busy[pool] = 0.0

    def _count_busy(self, now: float) -> None:
        passed = 0.0 if self._counted_at is None else now - self._counted_at
        self._counted_at = now
        for pool, since in enumerate(self._idle_since):
            self._trust[pool] = min(1.0, self._trust[pool] + passed / _TRUST_AGAIN_AFTER)
            self._trust_behind[pool] = min(1.0, self._trust_behind[pool] + passed / _TRUST_AGAIN_AFTER)
            if since is None:
                self._busy[pool] += passed
                self._silent[pool] += passed
