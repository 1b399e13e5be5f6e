"""The state machine of breakers, against what is promised of it, over any order of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from holdfast import breaker
from holdfast.breaker import (
    BreakerPolicy,
    BreakerReport,
    BreakerState,
    Circuit,
    Finding,
    Permit,
    admit,
    check_policy,
    declare,
    is_news,
    note,
    pause,
    seen,
    trip,
)
from holdfast.errors import InvalidOption

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
POLICIES = st.builds(
    BreakerPolicy,
    failures=st.integers(1, 4),
    reset=st.sampled_from([SECOND, timedelta(seconds=60)]),
    probes=st.integers(1, 3),
)


def failed(permit: Permit | None = None, number: int = 1) -> BreakerReport:
    return BreakerReport("stripe", Finding.FAILED, permit, number, "ConnectionError")


class Breakers(RuleBasedStateMachine):
    """Any order of passing, failing, succeeding, dying and waiting."""

    passed = Bundle[Permit | None]("passed")

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.circuit = Circuit("stripe", BreakerPolicy(2, timedelta(seconds=30), 2), NOW)
        self.in_a_row = 0
        """Failures that were reported in a row while it was closed."""

    def say(self, finding: Finding, permit: Permit | None) -> None:
        before, was_closed = self.circuit, self.circuit.reset_at is None
        self.circuit = note(before, BreakerReport("stripe", finding, permit), self.now)
        is_about_now = permit is not None and permit.opening == before.openings
        if was_closed:
            match finding:
                case Finding.FAILED:
                    self.in_a_row += 1
                case Finding.SUCCEEDED:
                    self.in_a_row = 0
                case _:
                    assert self.circuit == before
            is_open = self.circuit.reset_at is not None
            assert is_open == (self.in_a_row >= 2), "so many failures in a row, and no fewer, open it"
        elif not is_about_now:
            assert self.circuit == before, "what began before the opening says nothing"
        elif finding is Finding.FAILED:
            assert self.circuit.reset_at == self.now + timedelta(seconds=30)
            assert not self.circuit.permits
        elif finding is Finding.SUCCEEDED:
            assert self.circuit.reset_at is None
            self.in_a_row = 0

    @rule(target=passed)
    def ask_to_pass(self) -> Permit | MultipleResults[Permit | None] | None:
        state = breaker.state_of(self.circuit, self.now)
        trying = seen(self.circuit, self.now).probes
        self.circuit, admission = admit(self.circuit, uuid4(), self.now)
        match state:
            case BreakerState.CLOSED:
                assert admission.is_admitted
                assert admission.permit is None
            case BreakerState.OPEN:
                assert not admission.is_admitted
            case BreakerState.HALF_OPEN:
                assert admission.is_admitted == (trying < 2)
                assert admission.is_admitted == (admission.permit is not None)
        return admission.permit if admission.is_admitted else multiple()

    @rule(permit=consumes(passed))
    def fail(self, permit: Permit | None) -> None:
        self.say(Finding.FAILED, permit)

    @rule(permit=consumes(passed))
    def succeed(self, permit: Permit | None) -> None:
        self.say(Finding.SUCCEEDED, permit)

    @rule(permit=consumes(passed))
    def say_nothing(self, permit: Permit | None) -> None:
        self.say(Finding.NOTHING, permit)

    @rule(permit=consumes(passed))
    def die(self, permit: Permit | None) -> None:
        """Nobody hears of it again."""

    @rule(seconds=st.sampled_from([1, 29, 30, 31]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def reset(self) -> None:
        self.circuit, self.in_a_row = breaker.reset(self.circuit), 0
        assert breaker.state_of(self.circuit, self.now) is BreakerState.CLOSED

    @invariant()
    def no_more_try_than_may(self) -> None:
        assert seen(self.circuit, self.now).probes <= 2

    @invariant()
    def nobody_is_kept_out_for_ever(self) -> None:
        later = self.now + self.circuit.policy.reset + self.circuit.policy.lease
        assert admit(self.circuit, uuid4(), later)[1].is_admitted

    @invariant()
    def it_can_be_stored(self) -> None:
        assert msgspec.json.decode(msgspec.json.encode(self.circuit), type=Circuit) == self.circuit


TestBreakers = Breakers.TestCase


@given(POLICIES, st.integers(1, 10), st.integers(1, 10))
def test_failures_reported_together_count_as_if_one_by_one(policy: BreakerPolicy, one: int, other: int) -> None:
    circuit = Circuit("stripe", policy, NOW)
    together = note(circuit, failed(number=one), NOW)
    for _ in range(one):
        circuit = note(circuit, failed(), NOW)
    assert (together.reset_at, together.openings) == (circuit.reset_at, circuit.openings)


def test_what_the_code_says_changes_the_policy_and_nothing_else() -> None:
    circuit = trip(Circuit("stripe", BreakerPolicy(), NOW), NOW)
    after = declare(circuit, "stripe", BreakerPolicy(9), NOW + SECOND)
    assert after == Circuit(
        "stripe", BreakerPolicy(9), NOW + SECOND, openings=1, opened_at=NOW, reset_at=circuit.reset_at
    )
    assert declare(after, "stripe", BreakerPolicy(3), NOW) is after, "it is older"
    assert declare(after, "stripe", BreakerPolicy(9), NOW + SECOND) is after


def test_others_are_told_of_what_matters_to_them_only() -> None:
    circuit = Circuit("stripe", BreakerPolicy(3), NOW)
    once = note(circuit, failed(), NOW)
    twice = note(once, failed(), NOW)
    opened = note(twice, failed(), NOW)
    assert is_news(circuit, once), "from now on successes matter"
    assert not is_news(once, twice)
    assert is_news(twice, opened)
    later = NOW + timedelta(seconds=60)
    tried, admission = admit(opened, UUID(int=1), later)
    assert is_news(opened, tried)
    renewed = note(tried, BreakerReport("stripe", Finding.UNDER_WAY, admission.permit), later + SECOND)
    assert renewed != tried
    assert not is_news(tried, renewed)


@given(st.floats(0, 1), st.integers(0, 200))
def test_a_pause_lasts_until_the_reset_time_and_not_much_longer(chance: float, passed: int) -> None:
    record = seen(trip(Circuit("stripe", BreakerPolicy(), NOW), NOW), NOW)
    found = pause(record, chance, timedelta(seconds=passed))
    if passed < 60:
        assert timedelta(seconds=60 - passed) <= found <= timedelta(seconds=75 - passed)
    else:
        assert timedelta(seconds=15) <= found <= timedelta(seconds=30)


def test_a_test_waits_exactly_until_the_reset_time() -> None:
    record = seen(trip(Circuit("stripe", BreakerPolicy(), NOW), NOW), NOW)
    assert pause(record, 1.0) == timedelta(seconds=60)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5", None, 2_000_000])
def test_numbers_that_make_no_sense_are_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match=r"breaker\(failures\)"):
        check_policy(value, "60s", 1)
    with pytest.raises(InvalidOption, match=r"breaker\(probes\)"):
        check_policy(5, "60s", value)


def test_a_reset_time_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidOption, match="at least 100ms"):
        check_policy(5, 0, 1)
    with pytest.raises(InvalidOption, match=r"breaker\(reset\)"):
        check_policy(5, "soon", 1)
    assert check_policy(5, "60s", 1) == BreakerPolicy()
