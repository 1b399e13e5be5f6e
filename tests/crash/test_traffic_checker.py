"""The checker of limits is checked: it finds each way to pass one in a history made by hand, and nothing else."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.crash.checker import Fate, check
from tests.crash.traffic_checker import (
    Bounds,
    LimitBound,
    RateBound,
    crowded,
    disordered,
    hasty,
    mostly_used,
    runs_of,
    used,
)
from tests.worker.history import KILL, Event

FIRST, SECOND, THIRD = (UUID(int=number) for number in (1, 2, 3))


def start(job: UUID, at: float, pid: int = 1) -> Event:
    return Event("start", job, "t", 1, "", pid, at, at)


def end(job: UUID, at: float, pid: int = 1, note: str = "") -> Event:
    return Event("end", job, "t", 1, note, pid, at, at)


def kill(at: float, pid: int = 1) -> Event:
    return Event(KILL, note=Fate.CHILD, pid=pid, at=at, time=at)


def all_under(bounds: Bounds) -> dict[UUID, Bounds]:
    return dict.fromkeys((FIRST, SECOND, THIRD), bounds)


ONE_AFTER_THE_OTHER = [start(FIRST, 1), end(FIRST, 2), start(SECOND, 2), end(SECOND, 3), start(THIRD, 3), end(THIRD, 4)]
TWO_AT_ONCE = [start(FIRST, 1), start(SECOND, 2, pid=2), end(FIRST, 3), end(SECOND, 4, pid=2)]
THREE_AT_ONCE = [start(FIRST, 1), start(SECOND, 1, pid=2), start(THIRD, 2), end(THIRD, 3)]
OVERTAKEN = [start(SECOND, 1), end(SECOND, 2), start(FIRST, 3), end(FIRST, 4)]
RETRIED = [start(FIRST, 1), end(FIRST, 2, note="ValueError"), start(FIRST, 5), end(FIRST, 6), start(SECOND, 7)]
RETRIED_TOO_LATE = [start(FIRST, 1), end(FIRST, 2, note="ValueError"), *TWO_AT_ONCE[1:2], start(FIRST, 9)]
KILLED = [start(FIRST, 1), kill(2), start(FIRST, 2.5, pid=2), end(FIRST, 3, pid=2), start(SECOND, 3.5, pid=2)]
GIVEN_AWAY_BEFORE_THE_KILL = [start(FIRST, 1), start(SECOND, 1.5, pid=2), kill(2), end(SECOND, 3, pid=2)]


@pytest.mark.parametrize(
    ("events", "most", "found"),
    [
        (ONE_AFTER_THE_OTHER, 1, []),
        (TWO_AT_ONCE, 1, [SECOND]),
        (TWO_AT_ONCE, 2, []),
        (THREE_AT_ONCE, 2, [THIRD]),
        (THREE_AT_ONCE, 3, []),
        (KILLED, 1, []),
        (GIVEN_AWAY_BEFORE_THE_KILL, 1, [SECOND]),
    ],
)
def test_what_runs_beyond_its_limit_is_found(events: list[Event], most: int, found: list[UUID]) -> None:
    assert crowded(all_under(Bounds(LimitBound("key", most))), runs_of(events)) == found


def test_each_key_has_a_limit_of_its_own() -> None:
    bounds = {FIRST: Bounds(LimitBound("a", 1)), SECOND: Bounds(LimitBound("b", 1)), THIRD: Bounds()}
    assert crowded(bounds, runs_of(THREE_AT_ONCE)) == []


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ([0, 0, 10], []),
        ([0, 0, 9.9], [THIRD]),
        ([0, 9.9, 10], []),
        ([5, 9, 14], [THIRD]),
        ([0, 10, 10], []),
    ],
)
def test_what_starts_beyond_its_rate_is_found(times: list[float], found: list[UUID]) -> None:
    events = [start(job, at) for job, at in zip((FIRST, SECOND, THIRD), times, strict=True)]
    assert hasty(all_under(Bounds(rate=RateBound("key", 2, 10))), runs_of(events)) == found


def test_a_rate_counts_every_start_of_a_job() -> None:
    assert hasty(all_under(Bounds(rate=RateBound("key", 1, 10))), runs_of(RETRIED)) == [FIRST, SECOND]


def test_what_a_job_lost_on_its_way_from_the_claim_is_allowed_for_beyond_a_64th() -> None:
    events = [start(FIRST, 0.0), start(SECOND, 6.0)]
    bounds = all_under(Bounds(rate=RateBound("key", 1, 6.4)))
    assert hasty(bounds, runs_of(events)) == [SECOND]
    assert hasty(bounds, runs_of(events), lateness=0.4) == [SECOND]
    assert hasty(bounds, runs_of(events), lateness=0.6) == []


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (ONE_AFTER_THE_OTHER, []),
        (RETRIED, []),
        (KILLED, []),
        (TWO_AT_ONCE, [SECOND]),
        (OVERTAKEN, [FIRST]),
        (RETRIED_TOO_LATE, [FIRST]),
        (GIVEN_AWAY_BEFORE_THE_KILL, [SECOND]),
    ],
)
def test_what_is_out_of_order_is_found(events: list[Event], found: list[UUID]) -> None:
    assert disordered(all_under(Bounds(order="key")), runs_of(events)) == found


def test_other_keys_have_orders_of_their_own() -> None:
    bounds = {FIRST: Bounds(order="a"), SECOND: Bounds(order="b")}
    assert disordered(bounds, runs_of(OVERTAKEN)) == []


def test_the_whole_checker_names_them() -> None:
    everything = Bounds(LimitBound("key", 1), RateBound("key", 1, 10), "key")
    assert check([], [], TWO_AT_ONCE, all_under(everything)).broken == {
        "crowded": [SECOND],
        "hasty": [SECOND],
        "disordered": [SECOND],
    }
    assert check([], [], TWO_AT_ONCE).broken == {}


def test_how_much_of_a_rate_was_used_is_told_by_when_the_last_one_started() -> None:
    assert used([0, 1, 10, 11, 20, 21], most=2, per=10) == 1.0
    assert used([0, 1, 12, 13, 25, 26], most=2, per=10) == 20 / 25


def test_a_window_that_began_late_does_not_count_if_most_of_them_did_not() -> None:
    assert mostly_used([0, 10, 20, 80, 90, 100], most=1, per=10) == 1.0
    assert mostly_used([0, 12, 24, 36, 46], most=1, per=10) == 10 / 12
