"""Circuit breakers: whether something that keeps failing may be called. Pure: values and the time give values.

    closed ── so many failures in a row ──▶ open ── its reset time is over ──▶ half-open
      ▲                                      ▲                                  │   │
      │                                      └──────── a probe has failed ──────┘   │
      └───────────────────────────────────── a probe has succeeded ─────────────────┘

While it is half-open, so many may pass as there are probes; each has a permit, whose lease ends if nobody speaks of it
any more. What began before a breaker was opened says nothing about what is now: only permits of this opening count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvalidOption
from holdfast.span import Span, format_span, parse_span

LEAST_LEASE: Final = timedelta(seconds=10)
"""A probe of which nobody has heard for longer, and for longer than the reset time, is taken for lost."""
SHORTEST_RESET: Final = timedelta(milliseconds=100)
_MOST: Final = 1_000_000
_NO_TIME: Final = timedelta(0)


class BreakerState(StrEnum):
    """How a breaker stands: everybody may pass, nobody, or a few to try."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerPolicy(msgspec.Struct, frozen=True):
    """What the code says of a breaker: it opens after so many `failures` in a row, and for how long."""

    failures: int = 5
    reset: timedelta = timedelta(seconds=60)
    probes: int = 1
    """How many may try at once when that time is over."""

    @property
    def lease(self) -> timedelta:
        """How long a permit is good for, unless it is renewed."""
        return max(self.reset, LEAST_LEASE)


class Permit(msgspec.Struct, frozen=True):
    """The right to try once: its own id, and which opening of the breaker it is about."""

    id: UUID
    opening: int


class Circuit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A breaker as a store keeps it."""

    name: str
    policy: BreakerPolicy
    code_from: datetime
    """When the code was started that the policy comes from."""
    failures: int = 0
    """In a row."""
    openings: int = 0
    opened_at: datetime | None = None
    reset_at: datetime | None = None
    permits: dict[UUID, datetime] = {}
    """Those who try, and when their leases end."""
    last_error: str | None = None
    """The class of the failure that was reported last."""


class BreakerRecord(msgspec.Struct, frozen=True):
    """A breaker as it is seen at a moment: `hf.breakers.list()`."""

    name: str
    policy: BreakerPolicy
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    """In a row."""
    openings: int = 0
    opened_at: datetime | None = None
    reset_at: datetime | None = None
    """When the first may try again, or could have tried; None while it is closed."""
    reset_in: timedelta | None = None
    """How long that is from the moment when this was read; nothing while it is half-open."""
    probes: int = 0
    """How many are trying."""
    last_error: str | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more may try, once the reset time is over."""
        return self.state is not BreakerState.HALF_OPEN or self.probes < self.policy.probes


class Finding(StrEnum):
    """What somebody who passed has to say."""

    FAILED = "failed"
    SUCCEEDED = "succeeded"
    NOTHING = "nothing"
    """It neither failed nor succeeded: the permit is given back."""
    UNDER_WAY = "under way"
    """It still tries: the lease begins anew."""


class BreakerReport(msgspec.Struct, frozen=True):
    """What came of it when a breaker was passed; `number` times in a row."""

    breaker: str
    finding: Finding
    permit: Permit | None = None
    number: int = 1
    error_type: str | None = None


class Admission(msgspec.Struct, frozen=True):
    """The answer to whoever wants to pass. While the breaker is half-open, those who may get a permit."""

    is_admitted: bool
    record: BreakerRecord
    permit: Permit | None = None


class Pass(msgspec.Struct, frozen=True):
    """Somebody may pass; with a permit, if that is a probe."""

    permit: Permit | None = None


class Wait(msgspec.Struct, frozen=True):
    """Nobody may pass now. Ask again after `delay`."""

    delay: timedelta


PASS: Final = Pass()


# ── what the code says ───────────────────────────────────────────────────────────────────────────────────────────────


def check_policy(failures: object, reset: Span, probes: object) -> BreakerPolicy:
    """Check what a breaker was declared with."""
    span = parse_span(reset, "breaker(reset)")
    if span < SHORTEST_RESET:
        raise InvalidOption(f"breaker(reset) must be at least {format_span(SHORTEST_RESET)}.")
    return BreakerPolicy(_number(failures, "failures"), span, _number(probes, "probes"))


def _number(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise InvalidOption(f"breaker({name}) must be a whole number from 1 to {_MOST:,}.")
    return value


def declare(there: Circuit | None, name: str, policy: BreakerPolicy, code_from: datetime) -> Circuit:
    """The code says so. What younger code has said stays; so does how the breaker stands."""
    if there is None:
        return Circuit(name, policy, code_from)
    if code_from < there.code_from or (there.policy == policy and code_from == there.code_from):
        return there
    return replace(there, policy=policy, code_from=code_from)


# ── passing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def state_of(circuit: Circuit, now: datetime) -> BreakerState:
    if circuit.reset_at is None:
        return BreakerState.CLOSED
    return BreakerState.OPEN if now < circuit.reset_at else BreakerState.HALF_OPEN


def admit(circuit: Circuit, id: UUID, now: datetime) -> tuple[Circuit, Admission]:
    """Let somebody pass, or not. Whoever asks again with the same id gets the same permit."""
    state = state_of(circuit, now)
    if state is not BreakerState.HALF_OPEN:
        return circuit, Admission(state is BreakerState.CLOSED, seen(circuit, now))
    held = _live(circuit, now)
    if id not in held and len(held) >= circuit.policy.probes:
        return circuit, Admission(False, seen(circuit, now))
    after = replace(circuit, permits=held | {id: now + circuit.policy.lease})
    return after, Admission(True, seen(after, now), Permit(id, circuit.openings))


def note(circuit: Circuit, report: BreakerReport, now: datetime) -> Circuit:
    """What becomes of a breaker by what somebody reports who has passed it."""
    if report.error_type is not None:
        circuit = replace(circuit, last_error=report.error_type)
    if circuit.reset_at is None:
        return _note_while_closed(circuit, report, now)
    permit = report.permit
    if permit is None or permit.opening != circuit.openings:
        return circuit  # it began before the breaker was opened
    match report.finding:
        case Finding.FAILED:
            return _opened(circuit, circuit.failures + report.number, now, circuit.policy.reset)
        case Finding.SUCCEEDED:
            return _closed(circuit)
        case Finding.NOTHING:
            left = {id: until for id, until in circuit.permits.items() if id != permit.id}
            return replace(circuit, permits=left)
        case Finding.UNDER_WAY:
            return replace(circuit, permits=circuit.permits | {permit.id: now + circuit.policy.lease})


def note_all(circuits: Mapping[str, Circuit], reports: Iterable[BreakerReport], now: datetime) -> dict[str, Circuit]:
    """What becomes of breakers by reports, one after the other. Those about a breaker that is not there are dropped."""
    after = dict(circuits)
    for report in reports:
        if report.breaker in after:
            after[report.breaker] = note(after[report.breaker], report, now)
    return after


def _note_while_closed(circuit: Circuit, report: BreakerReport, now: datetime) -> Circuit:
    if report.finding is Finding.SUCCEEDED and circuit.failures:
        return replace(circuit, failures=0)
    if report.finding is not Finding.FAILED:
        return circuit
    failures = circuit.failures + report.number
    if failures < circuit.policy.failures:
        return replace(circuit, failures=failures)
    return _opened(circuit, failures, now, circuit.policy.reset)


# ── what people ask for ──────────────────────────────────────────────────────────────────────────────────────────────


def reset(circuit: Circuit) -> Circuit:
    """Closed at once, with no failures."""
    return _closed(circuit)


def trip(circuit: Circuit, now: datetime, span: timedelta | None = None) -> Circuit:
    """Open at once, for its reset time or for another span."""
    return _opened(circuit, circuit.failures, now, circuit.policy.reset if span is None else span)


def _opened(circuit: Circuit, failures: int, now: datetime, span: timedelta) -> Circuit:
    return replace(
        circuit, failures=failures, openings=circuit.openings + 1, opened_at=now, reset_at=now + span, permits={}
    )


def _closed(circuit: Circuit) -> Circuit:
    return replace(circuit, failures=0, opened_at=None, reset_at=None, permits={}, last_error=None)


# ── what is seen of it ───────────────────────────────────────────────────────────────────────────────────────────────


def seen(circuit: Circuit, now: datetime) -> BreakerRecord:
    """How it stands at a moment."""
    reset_at = circuit.reset_at
    return BreakerRecord(
        name=circuit.name,
        policy=circuit.policy,
        state=state_of(circuit, now),
        failures=circuit.failures,
        openings=circuit.openings,
        opened_at=circuit.opened_at,
        reset_at=reset_at,
        reset_in=None if reset_at is None else max(reset_at - now, _NO_TIME),
        probes=len(_live(circuit, now)),
        last_error=circuit.last_error,
    )


def is_news(before: Circuit, after: Circuit) -> bool:
    """Whether others must be told: who may pass has changed, or whether successes matter."""
    return (
        before.policy != after.policy
        or before.reset_at != after.reset_at
        or before.permits.keys() != after.permits.keys()
        or bool(before.failures) != bool(after.failures)
    )


def pause(record: BreakerRecord, chance: float, passed: timedelta = _NO_TIME) -> timedelta:
    """How long to wait before asking again, when the record was read `passed` ago.

    Until the reset time and up to a quarter of it longer, so that a backlog does not come back in one instant; while
    others try, a quarter to a half of it. `chance` is a random number from 0 to 1; the greater, the sooner.
    """
    spread = record.policy.reset / 4 * (1.0 - chance)
    left = (record.reset_in or _NO_TIME) - passed
    return left + spread if left > _NO_TIME else record.policy.reset / 4 + spread


def _live(circuit: Circuit, now: datetime) -> dict[UUID, datetime]:
    return {id: until for id, until in circuit.permits.items() if until > now}
