from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.liveness import BEAT_EVERY, DEAD_AFTER, FREE_FOR, WATCHED_FOR, Observer, Sighting

WORKER = UUID(int=1)
OTHER = UUID(int=2)
LONG_AGO = timedelta(days=1)

# Steps of a quarter second are exact as floats, so that a bound is met on the dot.
quarters = st.integers(1, 20).map(lambda count: count / 4)
ages = st.timedeltas(timedelta(days=-4000), timedelta(days=4000))
locks = st.sampled_from([None, True])


def seen(beat: int, age: timedelta = LONG_AGO, is_locked: bool | None = None, worker: UUID = WORKER) -> list[Sighting]:
    return [Sighting(worker, beat, age, is_locked)]


def found_after(start: float, period: float, is_locked: bool | None = None) -> float:
    """When an observer that begins to look at `start` finds a worker whose last beat was at 0."""
    observer, now = Observer(), start
    while not observer.observe(seen(7, timedelta(seconds=now), is_locked), now):
        now += period
        assert now < 1000, "the dead worker was never found"
    return now


def test_the_numbers_are_those_that_were_promised() -> None:
    assert (BEAT_EVERY.total_seconds(), DEAD_AFTER.total_seconds()) == (10, 30)
    assert WATCHED_FOR > BEAT_EVERY


# ── who lives ────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(quarters, ages, locks, st.booleans())), st.integers(8, 46).map(lambda count: count / 4))
def test_no_clock_jump_and_no_broken_connection_declares_a_beating_worker_dead(
    looks: list[tuple[float, timedelta, bool | None, bool]], beat_every: float
) -> None:
    observer, now = Observer(), 0.0
    for pause, age, is_locked, connection_broke in looks:
        now += pause
        if connection_broke:
            observer.forget()
        assert observer.observe(seen(int(now / beat_every), age, is_locked), now) == {}


@pytest.mark.parametrize("is_locked", [None, True, False])
def test_nobody_is_dead_at_first_sight(is_locked: bool | None) -> None:
    assert Observer().observe(seen(7, LONG_AGO, is_locked), 1_000_000.0) == {}


@pytest.mark.parametrize("is_locked", [None, True, False])
def test_after_a_broken_connection_a_worker_is_watched_anew(is_locked: bool | None) -> None:
    observer = Observer()
    observer.observe(seen(7, LONG_AGO, is_locked), 0.0)
    observer.forget()
    assert observer.observe(seen(7, LONG_AGO, is_locked), 100.0) == {}


def test_a_worker_that_was_out_of_sight_is_watched_anew() -> None:
    observer = Observer()
    observer.observe(seen(7), 0.0)
    observer.observe([], 6.0)
    assert observer.observe(seen(7), 12.0) == {}


def test_a_beat_at_the_last_moment_saves() -> None:
    observer = Observer()
    observer.observe(seen(7), 0.0)
    assert observer.observe(seen(8), 12.0) == {}
    assert observer.observe(seen(8), 23.75) == {}


@pytest.mark.parametrize("is_locked", [None, True])
def test_a_database_that_hung_for_a_minute_does_not_make_its_workers_look_dead(is_locked: bool | None) -> None:
    observer = Observer()
    for second in range(5):
        observer.observe(seen(7, timedelta(seconds=second), is_locked), float(second))
    assert observer.observe(seen(7, timedelta(seconds=64), is_locked), 64.0) == {}


# ── who is dead ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 400).map(lambda count: count / 4), quarters, locks)
def test_a_stopped_worker_is_found_within_the_bounds_and_not_before(
    start: float, period: float, is_locked: bool | None
) -> None:
    earliest = max(DEAD_AFTER.total_seconds(), start + WATCHED_FOR.total_seconds())
    assert earliest <= found_after(start, period, is_locked) < earliest + period


@given(st.integers(0, 400).map(lambda count: count / 4), quarters)
def test_a_free_lock_gives_a_worker_away_after_a_second_and_a_half(start: float, period: float) -> None:
    earliest = start + 1.5
    assert earliest <= found_after(start, period, is_locked=False) < earliest + period
    assert FREE_FOR.total_seconds() == 1.5


def found_free_after(beats: list[int], free_from: int, free_for: timedelta = FREE_FOR) -> float | None:
    """How long after its lock was first seen free a worker is found; a look each quarter of a second."""
    observer = Observer()
    for look, beat in enumerate(beats):
        sighting = Sighting(WORKER, beat, timedelta(), is_locked=look < free_from, free_for=free_for)
        if observer.observe([sighting], look / 4):
            return (look - free_from) / 4
    return None


@given(st.integers(0, 30), st.integers(0, 30))
def test_a_worker_that_was_killed_right_after_its_beat_is_found_as_soon_as_any_other(before: int, stood: int) -> None:
    beats = [7] * before + [8] * (stood + 10)
    assert found_free_after(beats, before + stood) == 1.5


def test_who_has_lost_its_lock_has_time_to_say_so_however_long_its_last_beat_is_ago() -> None:
    assert found_free_after([7] * 35 + [8] * 5, 30) is None


def test_a_worker_that_beats_without_its_lock_lives() -> None:
    assert found_free_after([look // 5 for look in range(200)], 0) is None


def test_a_lock_that_was_held_in_between_is_watched_anew() -> None:
    observer = Observer()
    for look in range(40):
        assert observer.observe(seen(7, timedelta(), is_locked=look % 6 == 5), look / 4) == {}


def test_a_lock_that_no_living_worker_can_lose_need_not_be_watched_for_so_long() -> None:
    assert found_free_after([7] * 10, 4, timedelta(seconds=0.25)) == 0.25


@given(st.lists(st.tuples(quarters, ages, st.integers(0, 3))))
def test_a_held_lock_never_makes_a_difference(looks: list[tuple[float, timedelta, int]]) -> None:
    blind, sighted, now = Observer(), Observer(), 0.0
    for pause, age, beat in looks:
        now += pause
        assert blind.observe(seen(beat, age, None), now) == sighted.observe(seen(beat, age, True), now)


def test_a_clock_that_was_set_back_does_not_hide_a_dead_worker() -> None:
    observer = Observer()
    an_hour_to_come = timedelta(hours=-1)
    looks = [observer.observe(seen(7, an_hour_to_come + timedelta(seconds=now)), float(now)) for now in range(61)]
    assert looks[-1] == {WORKER: 7}


def test_a_dead_worker_is_reported_with_its_beat_until_it_is_out_of_sight() -> None:
    observer = Observer()
    for second in range(12):
        observer.observe(seen(7), float(second))
    assert observer.observe(seen(7), 12.0) == observer.observe(seen(7), 13.0) == {WORKER: 7}
    assert observer.observe([], 14.0) == {}


def test_each_worker_is_judged_for_itself() -> None:
    observer = Observer()
    for second in range(12):
        observer.observe(seen(7) + seen(3, worker=OTHER), float(second))
    assert observer.observe(seen(7) + seen(4, worker=OTHER), 12.0) == {WORKER: 7}
