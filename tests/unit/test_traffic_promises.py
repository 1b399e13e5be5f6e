"""Traffic, as users are promised it: rates in any window, orders across retries, nobody starved, whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast, overload
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gates import GateKind, GateRule, LineRule
from tests.unit.test_traffic import QUEUE, SECOND, AnyTraffic, World, tenant


class WatchedWorld(World):
    """Notes which job has each order, and refuses to see it given to another."""

    def __init__(self) -> None:
        super().__init__()
        self.holder: dict[UUID, UUID] = {}
        self.tried: set[UUID] = set()
        self.behind: dict[UUID, UUID] = {}
        """Which job each was behind when it was last claimed."""
        self.most: dict[UUID, int] = {}
        """Of rates that somebody has set: the highest that they were at."""

    def override(self, rule: GateRule, most: int | None) -> None:
        super().override(rule, most)
        self.most[rule.id] = max(self.most.get(rule.id, rule.most), most or rule.most)

    def claim(
        self, slots: int, *, queue: str = QUEUE, most_rated: int | None = None, most_behind: int = 0
    ) -> list[UUID]:
        before = {line: list(jobs) for line, jobs in self.ready.items()}
        claimed = super().claim(slots, queue=queue, most_rated=most_rated, most_behind=most_behind)
        self.behind |= {job: other for job in claimed if (other := self.active[job]) is not None}
        for job in claimed:
            for gate in self._orders_of(job):
                if self.active[job] is None:
                    assert self.holder.setdefault(gate.id, job) == job, "it has overtaken the one before it"
            fresh = [other for other in before[self.line_of[job]] if other not in self.tried]
            assert job in self.tried or job == fresh[0], "it was not its turn"
            self.tried.add(job)
        for rate, window in self._windows().items():
            assert len(window) <= self.most.get(rate, 3)
        return claimed

    def end(self, job: UUID, *, is_over: bool = True, is_dead: bool = False) -> None:
        super().end(job, is_over=is_over, is_dead=is_dead)
        following = [each for each in self.running if self.behind.get(each) == job]
        for gate in self._orders_of(job):
            if following:
                (self.holder[gate.id],) = following
            elif is_over and not (is_dead and gate.is_blocking):
                del self.holder[gate.id]

    def withdraw(self, job: UUID) -> None:
        super().withdraw(job)
        self._forget(job)

    def drop(self, job: UUID) -> None:
        super().drop(job)
        self.tried.add(job)
        self._forget(job)

    def _forget(self, job: UUID) -> None:
        for gate in self._orders_of(job):
            if self.holder.get(gate.id) == job:
                del self.holder[gate.id]

    def _orders_of(self, job: UUID) -> list[GateRule]:
        return [gate for gate in self.rule_of[job].gates if gate.kind is GateKind.ORDER]

    def _windows(self) -> dict[UUID, list[UUID]]:
        """The starts of each rate in the last second."""
        recent = [job for at, job in self.starts if at > self.now - SECOND]
        by_rate: dict[UUID, list[UUID]] = {}
        for job in recent:
            for gate in self.rule_of[job].gates:
                if gate.kind is GateKind.RATE:
                    by_rate.setdefault(gate.id, []).append(job)
        return by_rate


class WatchedTraffic(AnyTraffic):
    """Every rate in it is three a second, unless somebody sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = WatchedWorld()


TestWatchedTraffic = WatchedTraffic.TestCase
TestWatchedTraffic.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


# ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 120),
    st.sampled_from([SECOND // 10, SECOND, 60 * SECOND, 3600 * SECOND]),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(0, 200),
)
def test_a_rate_is_never_passed_and_nearly_all_of_it_is_used_while_work_waits(
    most: int, per: int, slots: int, lines: int, lateness: int, duration: int
) -> None:
    """However many lines lead through it; with ticks that come up to a 250th of a window late; jobs of any length."""
    world, windows = World(), 8
    rate = GateRule(GateKind.RATE, "task", "key", most, per)
    for number in range(windows * most + lines + slots):
        world.enqueue(LineRule((rate, GateRule(GateKind.FAIR, "", f"t{number % lines}"))))
    end = world.now + windows * per
    running: list[tuple[int, UUID]] = []
    while world.now < end:
        while running and running[0][0] <= world.now:
            world.end(running.pop(0)[1])
        # A job's length is below a window's 300th part, so that slots are never what is short.
        claimed = world.claim(slots)
        running += [(world.now + duration * per // 60_000, job) for job in claimed]
        opening = world.ledger.next_at()
        if claimed:
            world.advance(per // 3000)
        else:
            assert opening is not None or running, "work waits, and nobody knows what for"
            late = lateness * per // 1000
            world.advance(max(1, (running[0][0] if opening is None else opening) - world.now + late))
    starts = [at for at, _ in world.starts]
    assert most_in_a_window(starts, per) <= most
    assert sum(at < end for at in starts) >= 0.95 * windows * most


def most_in_a_window(starts: Sequence[int], per: int) -> int:
    first = most = 0
    for number, at in enumerate(starts):
        while starts[first] <= at - per:
            first += 1
        most = max(most, number - first + 1)
    return most


def test_the_windows_are_counted_rightly() -> None:
    assert most_in_a_window([], 10) == 0
    assert most_in_a_window([0, 9, 10, 19, 20], 10) == 2
    assert most_in_a_window([0, 0, 9, 10], 10) == 3


# ── fairness ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Crowd(Sequence[UUID]):
    """So many jobs that nobody would want to make them all."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.gone = 0

    def __len__(self) -> int:
        return self.number - self.gone

    @overload
    def __getitem__(self, index: int) -> UUID: ...
    @overload
    def __getitem__(self, index: slice) -> list[UUID]: ...
    def __getitem__(self, index: int | slice) -> UUID | list[UUID]:
        left = range(self.gone, self.number)
        return [self.job(each) for each in left[index]] if isinstance(index, slice) else self.job(left[index])

    def remove(self, job: UUID) -> None:
        assert job == self[0]
        self.gone += 1

    @staticmethod
    def job(number: int) -> UUID:
        return UUID(int=10**12 + number)


@given(st.integers(1, 50))
def test_a_million_jobs_of_one_tenant_do_not_starve_ten_of_another(slots: int) -> None:
    world, large = World(), tenant("large")
    line, crowd = large.id_for(QUEUE, 5), Crowd(1_000_000)
    world.enqueue(large)
    world.ready[line] = cast(Any, crowd)
    world.line_of |= {crowd.job(number): line for number in range(1_000)}
    world.claim(100)
    small = [world.enqueue(tenant("small")) for _ in range(10)]
    started: list[UUID] = []
    while not set(small) <= set(started):
        started += world.claim(slots)
    assert len(started) <= 2 * len(small) + slots
    assert len(crowd) > 999_000


@settings(max_examples=50)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.integers(1, 30), st.integers(1, 12))
def test_tenants_with_work_get_the_same_however_many_lines_they_have(lines: list[int], claims: int, slots: int) -> None:
    world = World()
    for name, number in enumerate(lines):
        for _ in range(claims * slots + 1):
            for each in range(number):
                fair = GateRule(GateKind.FAIR, "", f"t{name}")
                world.enqueue(LineRule((fair, GateRule(GateKind.LIMIT, "task", f"{name}.{each}", 10_000))))
    got: Counter[str] = Counter()
    for _ in range(claims):
        for job in world.claim(slots):
            got[world.rule_of[job].gates[0].key] += 1
    assert got.total() == claims * slots
    counts = [got[f"t{name}"] for name in range(len(lines))]
    assert max(counts) - min(counts) <= max(lines) + 1


# ── what is parked ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 4), st.integers(1, 30), st.integers(1, 10))
def test_a_place_that_is_free_goes_to_somebody_who_waits_for_it(most: int, lines: int, slots: int) -> None:
    """Many lines wait at one gate: each place that is vacated is taken by the next claim, until nobody waits."""
    world = World()
    for number in range(lines):
        shared = GateRule(GateKind.LIMIT, "task", "shared", most)
        world.enqueue(LineRule((shared, GateRule(GateKind.ORDER, "task", f"o{number}"))))
    left = lines
    while left:
        world.claim(slots)
        while (more := min(most, left) - len(world.active)) > 0:
            assert len(world.claim(slots)) == min(slots, more), "there was room, and there was work"
        world.end(next(iter(world.active)))
        left -= 1
    assert not any(world.ready.values())
