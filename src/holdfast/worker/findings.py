"""What the end of a run says about its task's breaker. Pure: also for a supervisor, which has none of the code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from holdfast import lifecycle
from holdfast.breaker import BreakerPolicy, BreakerRecord, BreakerReport, Finding, Permit, pause
from holdfast.job import Delivery, Failure, FailureKind
from holdfast.lifecycle import Standing, Transition
from holdfast.outcome import Completed, Outcome, Raised


class Fuse(msgspec.Struct, frozen=True):
    """A breaker as a supervisor knows it."""

    name: str
    policy: BreakerPolicy
    counts_timeouts: bool


class Guarding(Protocol):
    """What must be known of a breaker here: a Breaker or a Fuse."""

    @property
    def name(self) -> str: ...
    @property
    def policy(self) -> BreakerPolicy: ...
    @property
    def counts_timeouts(self) -> bool: ...


def fuses(breakers: Iterable[Guarding]) -> list[Fuse]:
    return [Fuse(each.name, each.policy, each.counts_timeouts) for each in breakers]


def find(breaker: Guarding, outcome: Outcome) -> Finding:
    match outcome:
        case Completed():
            return Finding.SUCCEEDED
        case Raised(is_outage=True):
            return Finding.FAILED
        case Raised(failure=Failure(kind=FailureKind.TIMEOUT)) if breaker.counts_timeouts:
            return Finding.FAILED
        case _:
            return Finding.NOTHING


def report(breaker: Guarding, permit: Permit | None, outcome: Outcome) -> BreakerReport:
    finding = find(breaker, outcome)
    error_type = outcome.failure.error_type if isinstance(outcome, Raised) and finding is Finding.FAILED else None
    return BreakerReport(breaker.name, finding, permit, error_type=error_type)


def after_probe(
    job: Standing, breaker: Guarding, permit: Permit | None, outcome: Outcome, chance: float
) -> Transition | None:
    """What becomes of a job that was let through to try, if that is something else than usual.

    One that has failed has told what it was let through for. That is not to be charged to it: it would not live through
    a long outage, so it waits like the others.
    """
    if permit is None or job.delivery is Delivery.AT_MOST_ONCE or find(breaker, outcome) is not Finding.FAILED:
        return None
    assert isinstance(outcome, Raised)
    record = BreakerRecord(breaker.name, breaker.policy, reset_in=breaker.policy.reset)
    return lifecycle.after_wait(job, outcome.failure, pause(record, chance), breaker.name)
