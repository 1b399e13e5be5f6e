"""Traffic: no gate is passed by more than it lets through, nobody is forgotten, and everybody gets his turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast import traffic
from holdfast.gates import GateKind, GateRule, LineRule, to_open, used
from holdfast.stores.memory_ledger import MemoryLedger
from holdfast.traffic import Departure, at_once
from holdfast.turns import Bounds, Line, LineState, lines_share

SECOND = 1_000_000
QUEUE = "q"
QUEUES = (QUEUE, "other")


class World:
    """Jobs in lines, without a store around them."""

    def __init__(self) -> None:
        self.ready: dict[UUID, list[UUID]] = {}
        """Of each line, in the order to claim them in."""
        self.place_of: dict[UUID, tuple[int, int]] = {}
        self.line_of: dict[UUID, UUID] = {}
        self.rule_of: dict[UUID, LineRule] = {}
        self.active: dict[UUID, UUID | None] = {}
        """With the one that each is behind, if that has not been completed."""
        self.resting: dict[UUID, None] = {}
        """They have run, and will run again, but not now."""
        self.claimed_at: dict[UUID, int] = {}
        """Of those that are in a worker's hands."""
        self.starts: list[tuple[int, UUID]] = []
        """When jobs were claimed that have started, as far as is known."""
        self.overfull: dict[UUID, int] = {}
        """How many still hold a limit that was lowered."""
        self.overridden: set[UUID] = set()
        self.ledger = MemoryLedger(lambda line: self.ready.get(line, []), self.ready_where)
        self.now = 10**15
        self.last = 0
        self.last_place = 0

    def enqueue(self, rule: LineRule, priority: int = 5, queue: str = QUEUE) -> UUID:
        self.last += 1
        job = UUID(int=self.last)
        line = rule.id_for(queue, priority)
        self.line_of[job], self.rule_of[job] = line, rule
        at_once(traffic.enter(self.ledger, [(rule, queue, priority)]))
        self.become_ready(job)
        return job

    def become_ready(self, job: UUID) -> None:
        self.last_place += 1
        self._line_up(job, (1, self.last_place))
        at_once(traffic.wake(self.ledger, [self.line_of[job]]))

    def _line_up(self, job: UUID, place: tuple[int, int]) -> None:
        self.place_of[job] = place
        line = self.line_of[job]
        self.ready[line] = sorted([*self.ready.get(line, ()), job], key=self.place_of.__getitem__)

    @property
    def running(self) -> list[UUID]:
        """Those that are behind nobody."""
        return [job for job, before in self.active.items() if before is None]

    def ready_where(self, job: UUID) -> UUID | None:
        line = self.line_of[job]
        return line if job in self.ready[line] else None

    def claim(
        self, slots: int, *, queue: str = QUEUE, most_rated: int | None = None, most_behind: int = 0
    ) -> list[UUID]:
        found: list[UUID] = []
        for priority in sorted(at_once(self.ledger.open_priorities(queue)), reverse=True):
            bounds = Bounds(slots - len(found), most_rated, most_behind)
            claimed = at_once(traffic.claim(self.ledger, queue, priority, bounds, lambda: self.now))
            for job in claimed.jobs:
                assert claimed.behind.get(job) is None or claimed.behind[job] in self.active
                self.ready[self.line_of[job]].remove(job)
                self.active[job] = claimed.behind.get(job)
                self.claimed_at[job] = self.now
                self.starts.append((self.now, job))
            found += claimed.jobs
            assert len(claimed.behind) <= most_behind
            most_behind -= len(claimed.behind)
            assert most_rated is None or claimed.rated <= most_rated
            most_rated = None if most_rated is None else most_rated - claimed.rated
            assert len(claimed.jobs) - len(claimed.behind) <= bounds.slots
            if len(found) >= slots:
                break
        return found

    def starts_at(self, rate: UUID) -> list[int]:
        return [at for at, job in self.starts if rate in {gate.id for gate in self.rule_of[job].gates}]

    def _not_started(self, job: UUID) -> int:
        """It was claimed, and that is all. When that was."""
        self.starts.remove((self.claimed_at[job], job))
        return self.claimed_at[job]

    def end(self, job: UUID, *, is_over: bool = True, is_dead: bool = False) -> None:
        """A job that runs has ended. If it is not done, those behind it are given back."""
        del self.active[job]
        if not is_over:
            self.resting[job] = None
        departure = Departure(
            job, self.line_of[job], was_active=True, is_over=is_over, is_dead=is_dead, waits=not is_over
        )
        at_once(traffic.leave(self.ledger, [departure], self.now))
        for follower in [each for each, before in self.active.items() if before == job]:
            if is_over and not is_dead:
                self.active[follower] = None
            else:
                self.give_back(self.train_from(follower))

    def train_from(self, job: UUID) -> list[UUID]:
        """A job, and all that are behind it."""
        train = [job]
        while following := [each for each, before in self.active.items() if before == train[-1]]:
            train += following
        return train

    def give_back(self, jobs: Iterable[UUID], *, have_started: bool = False) -> None:
        """In any order, each by itself. Those that are behind others have not started."""
        for job in jobs:
            unstarted_at = None if have_started and self.active[job] is None else self._not_started(job)
            del self.active[job]
            self._line_up(job, (0, self.place_of[job][1]))
            departure = Departure(job, self.line_of[job], was_active=True, is_over=False, unstarted_at=unstarted_at)
            at_once(traffic.leave(self.ledger, [departure], self.now))
            at_once(traffic.wake(self.ledger, [self.line_of[job]]))

    def withdraw(self, job: UUID) -> None:
        """It is cancelled in a worker's hands, before it has begun. Those behind it are given back."""
        followers = self.train_from(job)[1:]
        del self.active[job]
        departure = Departure(
            job, self.line_of[job], was_active=True, is_over=True, unstarted_at=self._not_started(job)
        )
        at_once(traffic.leave(self.ledger, [departure], self.now))
        self.give_back(followers)

    def rouse(self, job: UUID) -> None:
        del self.resting[job]
        self.become_ready(job)

    def drop(self, job: UUID) -> None:
        """It is cancelled while it waits."""
        line = self.line_of[job]
        self.ready[line].remove(job)
        at_once(traffic.leave(self.ledger, [Departure(job, line, was_active=False, is_over=True)], self.now))

    def advance(self, by: int) -> None:
        self.now += by
        at_once(traffic.ripen(self.ledger, self.ledger.due_gates(self.now), self.now))

    def override(self, rule: GateRule, most: int | None) -> None:
        gate, _ = at_once(traffic.override(self.ledger, rule, most, self.now, makes=True))
        assert gate is not None
        assert gate.override == most
        self.overfull[gate.id] = gate.held
        self.overridden.add(gate.id)

    def check(self) -> None:
        gates = {gate.id: gate for gate in self.ledger.all_gates()}
        opened = [line for line in self.ledger.all_lines() if line.state is LineState.OPEN]
        trying = Counter((line.queue, id) for line in opened for id in line.gates)
        for line in self.ledger.all_lines():
            if self.ready.get(line.id):
                assert line.state is not LineState.CLOSED, "it has been forgotten"
            if line.state is LineState.PARKED:
                assert line.parked_at is not None
                gate = gates[line.parked_at]
                is_waiting_for_its_time = gate.next_at is not None
                # A rate gains room by time alone. Nobody is told of that, but whoever tries there lets the others in.
                enough = min(1, to_open(gate, self.now)) if gate.kind is GateKind.RATE else to_open(gate, self.now)
                assert is_waiting_for_its_time or trying[line.queue, gate.id] >= enough, "nobody uses the room"
        held = Counter(gate.id for job in self.active for gate in self.rule_of[job].gates)
        for gate in gates.values():
            if gate.holder is not None and not gate.held and (place := self.ready_where(gate.holder)) is not None:
                [its_line] = [each for each in self.ledger.all_lines() if each.id == place]
                assert its_line.state is LineState.OPEN or its_line.parked_at != gate.id, "it waits for itself"
            if gate.kind is GateKind.LIMIT:
                # What runs when a limit is lowered goes on, but nobody takes its place.
                self.overfull[gate.id] = min(self.overfull.get(gate.id, 0), gate.held)
                assert gate.held == held[gate.id] <= max(gate.most, self.overfull[gate.id])
            if gate.kind is GateKind.RATE:
                starts = self.starts_at(gate.id)
                assert used(gate, self.now) >= sum(self.now - gate.per < at for at in starts), "some are not counted"
                for at in starts if gate.id not in self.overridden else ():
                    assert sum(at <= other < at + gate.per for other in starts) <= gate.most
            if gate.kind is GateKind.ORDER:
                assert gate.held == held[gate.id] <= max(1, gate.most)
                running = [job for job in self.running if gate.id in {it.id for it in self.rule_of[job].gates}]
                assert len(running) <= 1


LIMITS = st.integers(0, 2).map(lambda key: GateRule(GateKind.LIMIT, "task", f"l{key}", key + 1))
RATES = st.integers(0, 1).map(lambda key: GateRule(GateKind.RATE, "task", f"r{key}", 3, SECOND))
ORDERS = st.integers(0, 4).map(
    lambda key: GateRule(GateKind.ORDER, "task", f"o{key}", most=1 if key == 0 else 4, is_blocking=key == 3)
)
TENANTS = st.integers(0, 2).map(lambda key: GateRule(GateKind.FAIR, "", f"t{key}"))


@st.composite
def rules(draw: st.DrawFn) -> LineRule:
    kinds = draw(st.lists(st.sampled_from([LIMITS, RATES, ORDERS, TENANTS]), min_size=1, max_size=4, unique=True))
    return LineRule(tuple(draw(kind) for kind in kinds))


class AnyTraffic(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(line=rules(), priority=st.sampled_from([2, 5]), number=st.integers(1, 4), queue=st.sampled_from(QUEUES))
    def enqueue(self, line: LineRule, priority: int, number: int, queue: str) -> None:
        for _ in range(number):
            self.world.enqueue(line, priority, queue)

    @rule(
        slots=st.integers(1, 8),
        most_rated=st.none() | st.integers(0, 3),
        most_behind=st.integers(0, 6),
        queue=st.sampled_from(QUEUES),
    )
    def claim(self, slots: int, most_rated: int | None, most_behind: int, queue: str) -> None:
        self.world.claim(slots, queue=queue, most_rated=most_rated, most_behind=most_behind)

    @precondition(lambda self: self.world.active)
    @rule(data=st.data(), end=st.sampled_from(["done", "rest", "dead"]))
    def end(self, data: st.DataObject, end: str) -> None:
        job = data.draw(st.sampled_from(self.world.running))
        self.world.end(job, is_over=end != "rest", is_dead=end == "dead")

    @precondition(lambda self: self.world.active)
    @rule(data=st.data(), have_started=st.booleans())
    def give_back(self, data: st.DataObject, have_started: bool) -> None:
        """A worker does not get to the end of a train, or is stopped, or is gone."""
        first = data.draw(st.sampled_from(list(self.world.active)))
        self.world.give_back(data.draw(st.permutations(self.world.train_from(first))), have_started=have_started)

    @precondition(lambda self: self.world.active)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        self.world.withdraw(data.draw(st.sampled_from(list(self.world.active))))

    @precondition(lambda self: self.world.resting)
    @rule(data=st.data())
    def rouse(self, data: st.DataObject) -> None:
        self.world.rouse(data.draw(st.sampled_from(list(self.world.resting))))

    @precondition(lambda self: any(self.world.ready.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        waiting = [job for jobs in self.world.ready.values() for job in jobs]
        self.world.drop(data.draw(st.sampled_from(waiting)))

    @rule(gate=LIMITS | RATES, most=st.none() | st.integers(1, 5))
    def override(self, gate: GateRule, most: int | None) -> None:
        self.world.override(gate, most)

    @rule(by=st.integers(1, SECOND))
    def advance(self, by: int) -> None:
        self.world.advance(by)

    @invariant()
    def holds(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """Whatever happened: all of a queue runs in the end, but what stands behind a dead job that blocks.

        At first nobody claims from the other queue, in which some may hold an order until they are done.
        """
        for queue in QUEUES:
            self._drain(queue)
            blocked = {
                gate.id
                for gate in self.world.ledger.all_gates()
                if gate.kind is GateKind.ORDER and gate.holder is not None
            }
            lines = {line.id for line in self.world.ledger.all_lines() if line.queue == queue}
            for line in lines:
                for job in self.world.ready.get(line, ()):
                    assert any(gate.id in blocked for gate in self.world.rule_of[job].gates)

    def _drain(self, queue: str) -> None:
        world = self.world
        idle = 0
        while idle < 5:
            world.advance(SECOND + SECOND // 32)
            for job in list(world.resting):
                world.rouse(job)
            idle = 0 if world.claim(50, queue=queue) else idle + 1
            while world.active:
                world.end(world.running[0])


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_whoever_tries_at_a_rate_that_has_gained_room_by_time_lets_the_others_in() -> None:
    world = World()
    shared, narrow = GateRule(GateKind.RATE, "task", "", 3, SECOND), GateRule(GateKind.LIMIT, "task", "", 2)
    first = world.enqueue(LineRule((shared,)), priority=2)
    assert world.claim(1) == [first]
    world.end(first)
    held_up = [world.enqueue(LineRule((shared, narrow)), priority=5) for _ in range(3)]
    other = world.enqueue(LineRule((shared,)), priority=2)
    world.advance(SECOND // 60)
    assert world.claim(3) == held_up[:2], "now the rate has no room, and both lines are parked there"
    world.advance(SECOND + SECOND // 64 - SECOND // 60)  # it has room for one, and the first line is opened
    world.advance(SECOND // 60)  # it has room for all, and nobody is told
    assert world.claim(3) == [], "the first line is held up by its limit, and opens the other one"
    assert world.claim(3) == [other]


def test_a_line_that_was_passed_over_when_a_rate_had_room_is_opened_the_next_time() -> None:
    world, slow = World(), GateRule(GateKind.RATE, "task", "", 1, SECOND)
    important = [world.enqueue(LineRule((slow,)), priority=5) for _ in range(2)]
    other = world.enqueue(LineRule((slow,)), priority=2)
    started: list[UUID] = []
    for _ in range(3):
        started += world.claim(5)
        world.advance(SECOND + SECOND // 32)
    assert started == [*important, other]


def test_what_was_not_started_after_all_lets_others_pass_a_rate() -> None:
    world = World()
    slow = LineRule((GateRule(GateKind.RATE, "task", "", 2, SECOND),))
    first, second, third = [world.enqueue(slow) for _ in range(3)]
    assert world.claim(5) == [first, second]
    assert world.claim(5) == []
    world.withdraw(first)
    assert world.claim(5) == [third], "without waiting for any time"
    world.give_back([second], have_started=True)
    assert world.claim(5) == [], "it has been at work"


class WatchedLedger(MemoryLedger):
    """Notes how many lines it is asked for."""

    looks: list[int]

    async def open_lines(self, queue: str, priority: int, most: int, *, is_unrated: bool) -> list[Line]:
        lines = await super().open_lines(queue, priority, most, is_unrated=is_unrated)
        self.looks.append(len(lines))
        return lines


@pytest.mark.parametrize("most_rated", [None, 0])
def test_one_claim_looks_at_some_hundreds_of_lines_behind_a_full_gate_and_soon_at_many_together(
    most_rated: int | None,
) -> None:
    world = World()
    world.ledger = ledger = WatchedLedger(lambda line: world.ready.get(line, []), world.ready_where)
    shared = GateRule(GateKind.LIMIT, "task", "", 1)
    jobs = [world.enqueue(LineRule((shared, GateRule(GateKind.ORDER, "task", f"o{number}")))) for number in range(2000)]
    claims = 0
    while at_once(ledger.open_priorities(QUEUE)):
        ledger.looks = []
        world.claim(16, most_rated=most_rated)
        claims += 1
        assert sum(ledger.looks) <= 1000
        assert len(ledger.looks) <= 6
    assert list(world.active) == jobs[:1]
    assert claims <= 6


# ── what is parked ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [GateKind.ORDER, GateKind.LIMIT])
def test_jobs_that_come_to_a_full_gate_open_no_line_until_somebody_leaves(kind: GateKind) -> None:
    world, rule = World(), LineRule((GateRule(kind, "task", ""),))
    first, second = world.enqueue(rule), world.enqueue(rule)
    assert world.claim(5) == [first]
    world.enqueue(rule)
    assert not at_once(world.ledger.open_priorities(QUEUE)), "it would be looked at for nothing"
    world.end(first)
    assert at_once(world.ledger.open_priorities(QUEUE))
    assert world.claim(5) == [second]


def test_whoever_waits_for_its_next_run_opens_the_line_of_its_order_when_it_comes() -> None:
    world, rule = World(), LineRule((GateRule(GateKind.ORDER, "task", ""),))
    first = world.enqueue(rule)
    world.enqueue(rule)
    assert world.claim(5) == [first]
    world.end(first, is_over=False)
    assert world.claim(5) == [], "the order is its own"
    world.rouse(first)
    assert world.claim(5) == [first]


# ── fairness ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def tenant(name: str, order: str | None = None) -> LineRule:
    fair = GateRule(GateKind.FAIR, "", name)
    return LineRule((fair,) if order is None else (fair, GateRule(GateKind.ORDER, "task", order)))


@given(st.integers(1, 7))
def test_a_tenant_with_many_jobs_does_not_starve_one_with_few(slots: int) -> None:
    world = World()
    for _ in range(200):
        world.enqueue(tenant("large"))
    world.claim(20)
    small = [world.enqueue(tenant("small")) for _ in range(10)]
    started: list[UUID] = []
    while not set(small) <= set(started):
        started += world.claim(slots)
    assert len(started) <= 2 * len(small) + slots


@given(st.integers(1, 7))
def test_many_lines_of_one_tenant_get_no_more_than_one_line_of_another(slots: int) -> None:
    world = World()
    for number in range(200):
        world.enqueue(tenant("large", f"order {number}"))
    small = [world.enqueue(tenant("small")) for _ in range(10)]
    started: list[UUID] = []
    while not set(small) <= set(started):
        started += world.claim(slots)
    assert len(started) <= 2 * len(small) + slots + 1


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 4))
def test_an_order_is_kept_for_each_key_also_across_retries(keys: list[str], slots: int, longest: int) -> None:
    world = World()
    expected: dict[str, list[UUID]] = {}
    for key in keys:
        expected.setdefault(key, []).append(world.enqueue(LineRule((GateRule(GateKind.ORDER, "task", key, longest),))))
    ended: dict[str, list[UUID]] = {}
    tries: Counter[UUID] = Counter()
    while any(world.ready.values()) or world.resting:
        world.claim(slots, most_behind=slots)
        while world.running:
            job = world.running[0]
            key = world.rule_of[job].gates[0].key
            assert expected[key][len(ended.get(key, []))] == job
            tries[job] += 1
            is_over = tries[job] > job.int % 3
            world.end(job, is_over=is_over)
            if is_over:
                ended.setdefault(key, []).append(job)
        for job in list(world.resting):
            world.rouse(job)
    assert ended == expected


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.booleans())
def test_slots_are_shared_so_that_neither_kind_starves_and_none_is_wasted(
    slots: int, plain: int, lined: int, coin: bool
) -> None:
    share = min(lined, lines_share(slots, plain, coin))
    rest = min(plain, slots - share)
    assert share + rest == min(slots, plain + lined)
    assert share >= min(lined, slots // 2)
    assert rest >= min(plain, slots // 2)
