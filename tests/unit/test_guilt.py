"""Whose fault it was: the rules at the head of guilt.py, each by example, and what holds for any flight."""

from __future__ import annotations

from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.breaker import BreakerPolicy, BreakerReport, Finding, Permit
from holdfast.job import Delivery, FailureKind
from holdfast.lifecycle import MOST_CRASHES, Bury, GiveBack
from holdfast.outcome import Crashed, Interrupted, Outcome, Raised
from holdfast.retry import Retry
from holdfast.worker import guilt
from holdfast.worker.findings import Fuse
from holdfast.worker.recorder import NEVER, Entry, Flight, Phase, Place

NOW = 1000.0
HOW = "was killed by SIGSEGV"


def entry(slot: int, place: Place = Place.LOOP, *, late: float | None = None, **facts: Any) -> Entry:
    """A job that has run for 5 s, overdue since so many seconds if that is said."""
    usual: dict[str, Any] = {
        "slot": slot,
        "phase": Phase.STARTED,
        "id": uuid4(),
        "token": uuid4(),
        "task": "t",
        "place": place,
        "attempt": 1,
        "max_attempts": 5,
        "crashes": 0,
        "waits": 0,
        "pool_tries": 0,
        "delivery": Delivery.AT_LEAST_ONCE,
        "retry": Retry(),
        "started_at": NOW - 5,
        "overdue_at": NOW + 60 if late is None else NOW - late,
        "pid": 4711 if place is Place.PROCESS else 0,
    }
    return Entry(**usual | facts)


def flight(*entries: Entry, on_cpu: int = -1, turned: float = 0.1) -> Flight:
    """`turned`: so many seconds ago the loop came round."""
    return Flight(frozenset(), entries, on_cpu, NOW - turned, 0)


def is_charged(outcome: Outcome) -> bool:
    return isinstance(outcome, Raised) or (isinstance(outcome, Crashed) and outcome.is_guilty)


def is_suspected(outcome: Outcome) -> bool:
    return isinstance(outcome, Crashed) and not outcome.is_guilty


def charged(outcomes: dict[int, Outcome]) -> set[int]:
    return {slot for slot, outcome in outcomes.items() if is_charged(outcome)}


def suspected(outcomes: dict[int, Outcome]) -> set[int]:
    return {slot for slot, outcome in outcomes.items() if is_suspected(outcome)}


# ── a timeout, on a loop that comes round ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", [Place.LOOP, Place.THREAD])
def test_who_is_overdue_although_the_loop_comes_round_is_charged(place: Place) -> None:
    outcomes = guilt.outcomes_of_timeout(flight(entry(0, place, late=0.5), entry(1), entry(2, Place.THREAD)), NOW)
    assert charged(outcomes) == {0}
    assert outcomes[1] == outcomes[2] == Interrupted()
    raised = outcomes[0]
    assert isinstance(raised, Raised)
    assert raised.failure.kind is FailureKind.TIMEOUT
    assert "timeout of 4.5 s" in raised.failure.message


def test_who_blocks_the_cpu_for_a_moment_is_not_charged_for_somebody_who_is_overdue() -> None:
    outcomes = guilt.outcomes_of_timeout(flight(entry(0, late=0.5), entry(1), on_cpu=1), NOW)
    assert (charged(outcomes), suspected(outcomes)) == ({0}, set())


def test_who_is_overdue_since_the_last_turn_only_may_have_been_kept_waiting() -> None:
    """The loop has not come round since its time was over, and another job is known to be guilty."""
    outcomes = guilt.outcomes_of_timeout(flight(entry(0, late=0.5), entry(1, late=0.05)), NOW)
    assert charged(outcomes) == {0}
    assert outcomes[1] == Interrupted()


# ── a timeout, on a loop that is blocked ─────────────────────────────────────────────────────────────────────────────


def test_who_is_on_the_cpu_of_a_blocked_loop_is_charged_and_not_who_could_not_run() -> None:
    outcomes = guilt.outcomes_of_timeout(flight(entry(0, late=0.6), entry(1), entry(2), on_cpu=1, turned=3.0), NOW)
    assert charged(outcomes) == {1}
    assert outcomes[0] == outcomes[2] == Interrupted()
    raised = outcomes[1]
    assert isinstance(raised, Raised)
    assert "blocked the event loop" in raised.failure.message


def test_who_is_on_the_cpu_and_overdue_is_told_about_its_timeout() -> None:
    outcomes = guilt.outcomes_of_timeout(flight(entry(0, late=0.6), on_cpu=0, turned=3.0), NOW)
    raised = outcomes[0]
    assert isinstance(raised, Raised)
    assert "timeout of 4.4 s" in raised.failure.message


def test_an_overdue_thread_is_charged_and_who_is_on_the_cpu_of_the_loop_is_suspected() -> None:
    """The thread may hold the interpreter's lock: then the coroutine on the CPU waits for it."""
    outcomes = guilt.outcomes_of_timeout(
        flight(entry(0, Place.THREAD, late=0.6), entry(1), entry(2), on_cpu=1, turned=3.0), NOW
    )
    assert (charged(outcomes), suspected(outcomes)) == ({0}, {1})
    assert outcomes[2] == Interrupted()


def test_if_nobody_is_on_the_cpu_of_a_blocked_loop_all_that_share_the_process_are_suspected() -> None:
    outcomes = guilt.outcomes_of_timeout(
        flight(entry(0, late=0.6), entry(1, Place.THREAD), entry(2, Place.PROCESS), turned=3.0), NOW
    )
    assert (charged(outcomes), suspected(outcomes)) == (set(), {0, 1})
    assert outcomes[2] == Interrupted()


def test_one_who_is_overdue_in_its_own_process_clears_nobody_who_may_have_blocked_the_loop() -> None:
    outcomes = guilt.outcomes_of_timeout(
        flight(entry(0, Place.PROCESS, late=2.0), entry(1, late=0.6), entry(2), turned=3.0), NOW
    )
    assert (charged(outcomes), suspected(outcomes)) == ({0}, {1, 2})


# ── when to kill ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nobody_is_killed_before_the_loop_had_the_time_to_come_round() -> None:
    late = entry(0, late=0.3)
    assert not guilt.must_be_killed({late: NOW - 0.3}, flight(late, turned=0.35), NOW)
    assert guilt.must_be_killed({late: NOW - 0.3}, flight(late, turned=0.1), NOW), "it has, and nothing came of it"
    assert guilt.must_be_killed({late: NOW - 0.6}, flight(late, turned=0.7), NOW), "it does not"


def test_it_is_the_watcher_that_must_have_waited_not_the_job() -> None:
    """As after a pause of the whole machine, when everything is overdue at once."""
    late = entry(0, late=60.0)
    assert not guilt.must_be_killed({late: NOW}, flight(late, turned=61.0), NOW)
    assert guilt.must_be_killed({late: NOW - 0.6}, flight(late, turned=61.0), NOW)


def test_a_job_that_is_overdue_in_a_process_of_its_own_is_no_reason_to_kill_the_others() -> None:
    alone = entry(0, Place.PROCESS, late=100.0)
    assert not guilt.must_be_killed({alone: NOW - 100}, flight(alone, entry(1)), NOW)
    assert not guilt.must_be_killed({}, flight(entry(1)), NOW)


def test_a_killed_process_is_gone_within_a_second_of_the_limit() -> None:
    """The watcher looks ten times a second, the loop comes round four times a second, at whatever moments."""
    for phase in range(25):
        for is_blocked in (True, False):
            late = entry(0, late=0.0)
            first_seen = NOW + 0.1
            moment = next(
                now
                for now in (NOW + 0.1 * look for look in count(1))
                if guilt.must_be_killed({late: first_seen}, flight(late, turned=_ago(now, phase, is_blocked)), now)
            )
            assert moment - NOW < 0.8


def _ago(now: float, phase: int, is_blocked: bool) -> float:
    """How many seconds before NOW (before it: a negative number) the loop came round last."""
    first = NOW - phase / 100
    turned_at = first if is_blocked else first + int((now - first) / 0.25) * 0.25
    return NOW - turned_at


def test_a_loop_that_has_not_begun_is_not_blocked() -> None:
    assert not guilt.is_blocked(Flight(frozenset(), (), -1, 0.0, 0), NOW)
    assert guilt.is_blocked(flight(turned=1.1), NOW)
    assert not guilt.is_blocked(flight(turned=0.9), NOW)


# ── a crash ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_that_ran_in_a_process_that_died_are_suspected_and_nobody_is_charged() -> None:
    outcomes = guilt.outcomes_of_crash(
        flight(
            entry(0),
            entry(1, Place.THREAD),
            entry(2, Place.PROCESS),
            entry(3, phase=Phase.CLAIMED),
            entry(4, phase=Phase.FINISHED),
            entry(5, Place.PROCESS, phase=Phase.FINISHED),
        ),
        HOW,
    )
    assert (charged(outcomes), suspected(outcomes)) == (set(), {0, 1, 4})
    assert (outcomes[2], outcomes[3], outcomes[5]) == (Interrupted(), Interrupted(has_started=False), Interrupted())
    for slot, when in ((0, "while it ran this job"), (4, "when this job had just ended")):
        crashed = outcomes[slot]
        assert isinstance(crashed, Crashed)
        assert crashed.failure.kind is FailureKind.CRASH
        assert f"{HOW} {when}" in crashed.failure.message


def test_nobody_is_blamed_for_a_replacement() -> None:
    outcomes = guilt.outcomes_of_replacement(flight(entry(0, late=5.0), entry(1, phase=Phase.CLAIMED)))
    assert outcomes == {0: Interrupted(), 1: Interrupted(has_started=False)}


def test_the_culprit_is_named() -> None:
    blocking = entry(3, task="resize")
    assert guilt.culprit(flight(entry(0), blocking, on_cpu=3)) == f"resize {blocking.id}"
    assert guilt.culprit(flight(entry(0), on_cpu=-1)) == "something other than a task's coroutine"


# ── any flight ───────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def flights(draw: st.DrawFn) -> Flight:
    entries = []
    for slot in range(draw(st.integers(0, 6))):
        phase = draw(st.sampled_from([Phase.CLAIMED, Phase.STARTED, Phase.STARTED, Phase.FINISHED]))
        is_running = phase is Phase.STARTED
        late = draw(st.none() | st.floats(-10, 40))
        one = entry(
            slot,
            draw(st.sampled_from(Place)),
            late=late,
            phase=phase,
            attempt=draw(st.integers(1, 5)),
            crashes=draw(st.integers(0, 2)),
            delivery=draw(st.sampled_from([Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])),
        )
        entries.append(one if is_running else entry(slot, one.place, phase=phase, overdue_at=NEVER, pid=0))
    on_cpu = draw(st.integers(-1, 6))
    return flight(*entries, on_cpu=on_cpu, turned=draw(st.floats(0, 40)))


judgements = st.sampled_from(
    [
        lambda seen: guilt.outcomes_of_timeout(seen, NOW),
        lambda seen: guilt.outcomes_of_crash(seen, HOW),
        guilt.outcomes_of_replacement,
    ]
)


@given(flights(), judgements)
def test_every_job_gets_exactly_one_outcome(seen: Flight, judge: Any) -> None:
    outcomes = judge(seen)
    assert set(outcomes) == {each.slot for each in seen.entries}
    settlements = guilt.settlements(seen.entries, outcomes, lambda: 0.5)
    assert sorted(settlement.token for settlement in settlements) == sorted(each.token for each in seen.entries)


@given(flights(), judgements)
def test_what_has_not_started_is_never_blamed_and_what_has_ended_never_charged(seen: Flight, judge: Any) -> None:
    outcomes = judge(seen)
    for each in seen.entries:
        if each.phase is Phase.CLAIMED:
            assert outcomes[each.slot] == Interrupted(has_started=False)
        elif each.phase is Phase.FINISHED:
            assert outcomes[each.slot] == Interrupted() or is_suspected(outcomes[each.slot])


@given(flights(), judgements)
def test_what_runs_in_a_process_of_its_own_is_never_suspected(seen: Flight, judge: Any) -> None:
    outcomes = judge(seen)
    for each in seen.entries:
        if each.place is Place.PROCESS:
            assert not is_suspected(outcomes[each.slot])
            if each.overdue_at > NOW:
                assert not is_charged(outcomes[each.slot])


@given(flights(), judgements)
def test_nobody_is_charged_who_is_neither_overdue_nor_on_the_cpu(seen: Flight, judge: Any) -> None:
    outcomes = judge(seen)
    for slot in charged(outcomes):
        (each,) = [each for each in seen.entries if each.slot == slot]
        assert each.overdue_at <= NOW or (slot == seen.on_cpu and each.place is Place.LOOP)


@given(flights())
def test_a_timeout_always_leaves_somebody_charged_or_suspected(seen: Flight) -> None:
    """Else the same would happen again and again, for ever."""
    if any(each.overdue_at <= NOW for each in seen.running):
        outcomes = guilt.outcomes_of_timeout(seen, NOW)
        assert charged(outcomes) | suspected(outcomes)


@given(flights(), judgements)
def test_an_at_most_once_job_that_has_started_never_runs_again(seen: Flight, judge: Any) -> None:
    settlements = guilt.settlements(seen.entries, judge(seen), lambda: 0.5)
    by_token = {settlement.token: settlement.transition for settlement in settlements}
    for each in seen.entries:
        transition = by_token[each.token]
        if each.delivery is Delivery.AT_MOST_ONCE:
            if each.phase is Phase.CLAIMED:
                assert transition == GiveBack()
            else:
                assert isinstance(transition, Bury)


@given(flights(), judgements)
def test_the_innocent_get_their_attempt_back_and_their_crashes_are_not_counted(seen: Flight, judge: Any) -> None:
    outcomes = judge(seen)
    blamed = charged(outcomes) | suspected(outcomes)
    for settlement, each in zip(guilt.settlements(seen.entries, outcomes, lambda: 0.5), seen.entries, strict=True):
        if each.slot not in blamed and each.delivery is not Delivery.AT_MOST_ONCE:
            transition = settlement.transition
            assert isinstance(transition, GiveBack)
            assert (transition.is_charged, transition.has_crashed) == (False, False)


def test_a_job_that_crashes_its_process_again_and_again_is_buried() -> None:
    crashes = 0
    while True:
        suspect = entry(0, crashes=crashes)
        (settlement,) = guilt.settlements([suspect], guilt.outcomes_of_crash(flight(suspect), HOW), lambda: 0.5)
        crashes += 1
        if isinstance(settlement.transition, Bury):
            break
        assert isinstance(settlement.transition, GiveBack)
        assert (settlement.transition.is_charged, settlement.transition.has_crashed) == (False, True)
    assert crashes == MOST_CRASHES


def test_what_is_told_to_the_store_names_the_claim() -> None:
    known = entry(0, id=UUID(int=7), token=UUID(int=8))
    (settlement,) = guilt.settlements([known], {0: Interrupted()}, lambda: 0.5)
    assert (settlement.id, settlement.token) == (UUID(int=7), UUID(int=8))


# ── what breakers are told ───────────────────────────────────────────────────────────────────────────────────────────

FUSES = [Fuse("strict", BreakerPolicy(), counts_timeouts=True), Fuse("lax", BreakerPolicy(), counts_timeouts=False)]
PERMIT = Permit(UUID(int=9), 3)


def test_whose_time_was_over_has_failed_if_its_breaker_counts_that() -> None:
    seen = flight(
        entry(0, Place.THREAD, late=1, fuse=1),
        entry(1, Place.THREAD, late=1, fuse=2),
        entry(2, Place.THREAD, late=1),
        entry(3, Place.THREAD, fuse=1),
        entry(4, Place.THREAD, late=1, fuse=3),
    )
    outcomes = guilt.outcomes_of_timeout(seen, NOW)
    assert charged(outcomes) == {0, 1, 2, 4}
    assert guilt.reports(seen.entries, outcomes, FUSES) == [
        BreakerReport("strict", Finding.FAILED, error_type="HardTimeout")
    ]


@pytest.mark.parametrize("phase", [Phase.CLAIMED, Phase.STARTED, Phase.FINISHED])
def test_a_crash_is_no_failure_but_permits_are_free_again(phase: Phase) -> None:
    seen = flight(entry(0, fuse=1), entry(1, fuse=2, permit=PERMIT, phase=phase))
    outcomes = guilt.outcomes_of_crash(seen, HOW)
    assert guilt.reports(seen.entries, outcomes, FUSES) == [BreakerReport("lax", Finding.NOTHING, PERMIT)]


def test_a_probe_whose_time_was_over_says_so_and_is_not_charged() -> None:
    strict, lax = entry(0, late=1, fuse=1, permit=PERMIT), entry(1, late=1, fuse=2, permit=PERMIT)
    seen = flight(strict, lax)
    outcomes = guilt.outcomes_of_timeout(seen, NOW)
    assert guilt.reports(seen.entries, outcomes, FUSES) == [
        BreakerReport("strict", Finding.FAILED, PERMIT, error_type="HardTimeout"),
        BreakerReport("lax", Finding.NOTHING, PERMIT),
    ]
    waiting, charged = (
        settlement.transition for settlement in guilt.settlements(seen.entries, outcomes, lambda: 1.0, FUSES)
    )
    assert isinstance(waiting, GiveBack)
    assert (waiting.is_charged, waiting.has_waited, waiting.delay) == (False, True, BreakerPolicy().reset)
    assert isinstance(charged, GiveBack)
    assert (charged.is_charged, charged.has_waited) == (True, False)


def test_a_probe_that_may_run_once_only_is_not_put_off_but_buried() -> None:
    probe = entry(0, late=1, fuse=1, permit=PERMIT, delivery=Delivery.AT_MOST_ONCE)
    seen = flight(probe)
    (settlement,) = guilt.settlements(seen.entries, guilt.outcomes_of_timeout(seen, NOW), lambda: 0.5, FUSES)
    assert isinstance(settlement.transition, Bury)
