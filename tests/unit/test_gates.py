"""Gates: in no window more starts than the limit, and nearly all of it is used while work waits."""

from __future__ import annotations

from uuid import UUID, uuid4

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.gates import Gate, GateKind, GateRule, LineRule, opens_at, room, taken, unused, used, vacated

SECOND = 1_000_000


def rate(most: int, per: int = SECOND) -> Gate:
    return Gate(uuid4(), GateKind.RATE, "task", "key", most, per=per)


def some(number: int) -> list[UUID]:
    return [UUID(int=index) for index in range(number)]


def highest_in_a_window(starts: list[int], per: int) -> int:
    return max((sum(1 for other in starts if at <= other < at + per) for at in starts), default=0)


@given(
    st.integers(1, 200),
    st.sampled_from([100_000, SECOND, 60 * SECOND, 86_400 * SECOND]),
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 300), st.floats(0, 1 / 64)), max_size=60),
)
def test_no_window_has_more_starts_than_the_limit(most: int, per: int, calls: list[tuple[float, int, float]]) -> None:
    """Also if each job starts a little after it was claimed, by up to a 64th of the window."""
    gate, now = rate(most, per), 10**15
    starts: list[int] = []
    for pause, wanted, late in calls:
        now += int(pause * per)
        number = min(wanted, room(gate, now))
        gate = taken(gate, some(number), now)
        starts += [now + int(late * per)] * number
        assert len(gate.log) <= 64
    assert highest_in_a_window(starts, per) <= most


@settings(max_examples=30)
@given(st.integers(1, 300), st.sampled_from([SECOND, 60 * SECOND]), st.integers(1, 50))
def test_nearly_all_of_a_rate_is_used_while_work_waits(most: int, per: int, slots: int) -> None:
    gate, now, starts = rate(most, per), 10**15, 0
    end = now + 20 * per
    while now < end:
        number = min(slots, room(gate, now))
        if number:
            gate = taken(gate, some(number), now)
            starts += number
            now += per // 1000
        else:
            opening = opens_at(gate, now)
            assert opening is not None
            assert opening > now
            now = opening
    assert starts >= 0.95 * 20 * most


@given(st.integers(1, 20), st.lists(st.integers(1, 2 * SECOND), min_size=1, max_size=40))
def test_a_rate_has_room_again_when_it_says_and_not_before(most: int, pauses: list[int]) -> None:
    gate, now = rate(most), 10**15
    for pause in pauses:
        now += pause
        gate = taken(gate, some(room(gate, now)), now)
        opening = opens_at(gate, now)
        assert opening is not None
        assert room(gate, opening - 1) == 0
        assert room(gate, opening) > 0


@given(st.lists(st.tuples(st.integers(-3 * SECOND, 3 * SECOND), st.integers(1, 5)), max_size=200))
def test_a_clock_that_is_set_back_gives_nothing_away_and_leaves_no_heap(steps: list[tuple[int, int]]) -> None:
    gate, now = rate(3), 10**15
    for step, wanted in steps:
        now += step
        gate = taken(gate, some(min(wanted, room(gate, now))), now)
        assert len(gate.log) <= 64
        assert room(gate, now) >= 0


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0, 1.5), st.integers(1, 30), st.lists(st.integers(0, 30), max_size=8)), max_size=40),
)
def test_only_what_has_started_counts_and_all_of_that(most: int, calls: list[tuple[float, int, list[int]]]) -> None:
    """Whatever part of the claims turns out not to have started, however late."""
    gate, now = rate(most), 10**15
    claims: list[int] = []
    for pause, wanted, not_started in calls:
        now += int(pause * SECOND)
        number = min(wanted, room(gate, now))
        gate = taken(gate, some(number), now)
        claims += [now] * number
        for index in not_started:
            if claims:
                gate = unused(gate, claims.pop(index % len(claims)))
        assert highest_in_a_window(claims, SECOND) <= most
        assert used(gate, now) >= sum(now - SECOND < at for at in claims)
        assert used(gate, now) <= sum(now - SECOND - 2 * SECOND // 60 - SECOND // 64 < at for at in claims)


def test_only_a_rate_counts_starts() -> None:
    limit = taken(Gate(uuid4(), GateKind.LIMIT, "task", "", 4), some(3), 7)
    assert unused(limit, 7) is limit
    full = taken(rate(4), some(2), 7)
    assert unused(full, 7 + SECOND) is full, "nothing was claimed then"


def test_a_limit_has_the_room_that_nobody_holds() -> None:
    gate = Gate(uuid4(), GateKind.LIMIT, "task", "", 4)
    gate = taken(gate, some(3), 0)
    assert room(gate, 0) == 1
    gate = vacated(gate, UUID(int=0), was_active=True, is_over=False)
    assert room(gate, 0) == 2
    assert vacated(gate, UUID(int=0), was_active=False, is_over=True) == gate
    assert room(replace(gate, override=1), 0) == 0
    assert room(replace(gate, override=100), 0) == 98


def test_what_is_used_and_what_is_left_are_all_there_is() -> None:
    limit = taken(Gate(uuid4(), GateKind.LIMIT, "task", "", 4), some(3), 0)
    rate = taken(Gate(uuid4(), GateKind.RATE, "task", "", 4, per=60 * SECOND), some(3), 0)
    for gate in (limit, rate):
        assert used(gate, 1) == 3
        assert used(gate, 1) + room(gate, 1) == gate.most
    assert used(rate, 120 * SECOND) == 0
    order = Gate(uuid4(), GateKind.ORDER, "task", "key")
    assert (used(order, 0), used(taken(order, some(1), 0), 0)) == (0, 1)
    assert used(Gate(uuid4(), GateKind.FAIR, "", "tenant"), 0) == 0


def test_an_order_is_held_until_its_job_is_over() -> None:
    gate = taken(Gate(uuid4(), GateKind.ORDER, "task", "key"), some(1), 0)
    assert gate.holder == UUID(int=0)
    assert vacated(gate, UUID(int=0), was_active=True, is_over=False).holder == UUID(int=0)
    assert vacated(gate, UUID(int=7), was_active=True, is_over=True).holder == UUID(int=0)
    assert vacated(gate, UUID(int=0), was_active=True, is_over=True).holder is None


def test_equal_rules_are_one_line_and_different_ones_are_not() -> None:
    one = LineRule((GateRule(GateKind.LIMIT, "a", "x", 4), GateRule(GateKind.FAIR, "", "t")))
    same = LineRule((GateRule(GateKind.FAIR, "", "t"), GateRule(GateKind.LIMIT, "a", "x", 9)))
    assert one.id_for("q", 5) == same.id_for("q", 5), "how many is not part of the name"
    lines = {
        one.id_for("q", 5),
        one.id_for("q", 6),
        one.id_for("r", 5),
        LineRule((GateRule(GateKind.LIMIT, "a", "y", 4),)).id_for("q", 5),
        LineRule((GateRule(GateKind.RATE, "a", "x", 4),)).id_for("q", 5),
    }
    assert len(lines) == 5
    ordered = LineRule((GateRule(GateKind.ORDER, "a", "x"),))
    assert ordered.id_for("q", 5) == ordered.id_for("q", 9), "in an order, priority does not count"
