"""Gaps at the write lock: those who nap at it get in, and a lock that is free often enough is never left alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, repeat

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.stores.sqlite.occupancy import BUSY, LONG_GAP, LONG_GAP_EVERY, SHORT_GAP, Occupancy

NAPS = (0.001, 0.002, 0.005, 0.010, 0.015, 0.020, 0.025, 0.025, 0.025, 0.050, 0.050)
"""SQLite's own, in seconds. Each that follows takes 0.1."""
START = 1000.0

short_transactions = st.lists(st.floats(0.001, 0.025), min_size=1, max_size=20)
long_transactions = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=20)


def gaps_between(transactions: Sequence[float], until: float) -> Iterator[tuple[float, float]]:
    """The times at which the lock is free, beside writers that come back to back."""
    now, occupancy = START, Occupancy(since=START, rested_at=START)
    for transaction in cycle(transactions):
        gap = occupancy.gap(now)
        if gap:
            yield now, now + gap
            now += gap
        occupancy = occupancy.taken(now)
        now += transaction
        occupancy = occupancy.released(now)
        if now > until:
            return


def wait_of_guest(arrival: float, transactions: Sequence[float]) -> float:
    """How long one that comes at this time naps until it finds the lock free."""
    gaps = list(gaps_between(transactions, arrival + 5))
    now = arrival
    for nap in chain(NAPS, repeat(0.1)):
        index = bisect_right(gaps, (now, float("inf"))) - 1
        if index >= 0 and now < gaps[index][1]:
            return now - arrival
        assert now < arrival + 5, "It starves."
        now += nap
    raise AssertionError


@given(short_transactions, st.floats(0, 3))
def test_beside_short_transactions_a_guest_gets_in_at_the_first_gap(transactions: list[float], after: float) -> None:
    assert wait_of_guest(START + after, transactions) < BUSY + 0.025 + SHORT_GAP


@given(long_transactions, st.floats(0, 3))
@example([1.0], 0.0)
def test_beside_long_transactions_a_guest_gets_in_at_the_next_long_gap(transactions: list[float], after: float) -> None:
    longest = max(transactions)
    until_it_is_due = LONG_GAP_EVERY + BUSY + SHORT_GAP
    assert wait_of_guest(START + after, transactions) < until_it_is_due + 2 * longest + LONG_GAP


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=50))
def test_a_lock_that_is_free_half_of_the_time_is_never_left_alone(times: list[tuple[float, float]]) -> None:
    now, occupancy = START, Occupancy()
    for held, more in times:
        occupancy = occupancy.taken(now)
        now += held
        occupancy = occupancy.released(now)
        now += held + more + 1e-9
        assert occupancy.gap(now) == 0


@given(long_transactions)
def test_gaps_take_no_more_than_a_third_of_what_is_written(transactions: list[float]) -> None:
    until = START + 20
    left_alone = sum(min(end, until) - begin for begin, end in gaps_between(transactions, until) if begin < until)
    assert left_alone <= 20 / 3


@given(st.binary(max_size=32), st.floats(0, 1e9))
@example(b"\xff" * 24, START)
@example(Occupancy(1e9, START, START).to_bytes(), START)
@example(Occupancy(1e9, 2 * START, 2 * START).to_bytes(), START)
def test_whatever_stands_in_the_file_costs_one_gap_at_most(data: bytes, now: float) -> None:
    occupancy = Occupancy.from_bytes(data)
    gap = occupancy.gap(now)
    assert gap in (0, SHORT_GAP, LONG_GAP)
    later = now + LONG_GAP + 1e-6
    assert occupancy.taken(later).gap(later) == 0


@given(st.floats(0, 1e6), st.floats(0, 1e9), st.floats(0, 1e9))
def test_what_is_written_is_read_again(held: float, since: float, rested_at: float) -> None:
    occupancy = Occupancy(held, since, rested_at)
    assert Occupancy.from_bytes(occupancy.to_bytes()) == occupancy
