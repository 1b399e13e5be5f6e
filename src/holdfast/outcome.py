"""What came of an attempt: what a task may raise to say so, and what the worker reports.

a task raises             the worker reports      lifecycle.decide makes of it
(returns)                 Completed               Complete
GiveUp, bad data          Raised(PERMANENT)       Bury
any other exception       Raised(TRANSIENT)       GiveBack after a backoff, at last Bury
TryAgain("30s")           Raised(AGAIN)           GiveBack, charged
Snooze("30s")             Raised(SNOOZE)          GiveBack, not charged
RateLimited(retry_after)  Raised(THROTTLED)       GiveBack, not charged
BreakerOpen               Raised(BREAKER)         GiveBack, not charged
PoolFull                  Raised(POOL_FULL)       GiveBack after 5 s, three tries
Cancel("…")               Withdrawn               Withdraw
(the system stopped it)   Interrupted             GiveBack, not charged
(it could not begin)      Unstarted               GiveBack, not charged
(its process died)        Crashed                 GiveBack, at last Bury
"""

from __future__ import annotations

import email.utils
import math
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.job import Failure
from holdfast.span import LONGEST, Span, format_span, parse_span


class Signal(Exception):
    """Raised by a task to say what is to become of its job."""

    usual = "said so by the task"
    """What is read afterwards if the task gives no reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or self.usual)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied as it is, not made anew: it may have to leave the process that raised it."""
        return _restored, (type(self), self.args, self.__dict__)


class GiveUp(Signal):
    """No attempt can succeed: the job goes to the dead letters at once."""

    usual = "given up by the task"


class Cancel(Signal):
    """The job is not wanted any more: it ends as cancelled."""

    usual = "cancelled by the task"


class Snooze(Signal):
    """Not yet: run the job again after a while. This is not a failure and no attempt is charged."""

    def __init__(self, delay: Span, reason: str = "") -> None:
        self.delay = parse_span(delay, "Snooze(delay)")
        super().__init__(reason or f"not yet, again in {format_span(self.delay)}")


class TryAgain(Signal):
    """It failed; run it again after this delay rather than after the usual backoff."""

    usual = "to be tried again"

    def __init__(self, delay: Span | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = None if delay is None else parse_span(delay, "TryAgain(delay)")


class RateLimited(Signal):
    """The other side said 429: wait exactly as long as its Retry-After says. No attempt is charged.

    `retry_after` is a number of seconds or an HTTP date, as the header has them, or a
    span, a timedelta or a datetime. Without it, or if it can't be read, the usual backoff is waited.
    """

    usual = "rate limited by the other side"

    def __init__(self, retry_after: Span | datetime | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.retry_after = _read_retry_after(retry_after)

    def delay_from(self, now: datetime) -> timedelta | None:
        """How long to wait, seen from now; None if the other side did not say."""
        if isinstance(self.retry_after, datetime):
            return min(max(self.retry_after - now, timedelta(0)), LONGEST)
        return self.retry_after


class BreakerOpen(Signal):
    """What is behind a circuit breaker keeps failing, so it is left alone until `delay` is over.

    A job that lets this leave its task runs again then; no attempt is charged. Code that is no job may catch it.
    """

    def __init__(self, breaker: str, delay: Span, reason: str = "") -> None:
        self.breaker = breaker
        self.delay = parse_span(delay, "BreakerOpen(delay)")
        super().__init__(reason or f"the breaker {breaker!r} is open, again in {format_span(_rounded(self.delay))}")


class PoolFull(Signal):
    """A connection pool had nothing to give: try again in 5 s, three times."""

    usual = "the connection pool is full"


def _rounded(span: timedelta) -> timedelta:
    """To a tenth of a second, for people."""
    return timedelta(seconds=round(span.total_seconds(), 1))


def _restored(kind: type[Signal], args: tuple[Any, ...], state: dict[str, Any]) -> Signal:
    signal = kind.__new__(kind, *args)
    signal.args = args
    signal.__dict__.update(state)
    return signal


class Verdict(StrEnum):
    """The class of a failure: what the exception says about trying again."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    CANCEL = "cancel"
    AGAIN = "again"
    SNOOZE = "snooze"
    THROTTLED = "throttled"
    BREAKER = "breaker"
    POOL_FULL = "pool_full"


class Completed(msgspec.Struct, frozen=True):
    """The task returned."""

    result_json: str | None = None


class Raised(msgspec.Struct, frozen=True):
    """The task raised, or its time was over. `delay` is what the exception asked for, if it did."""

    verdict: Verdict
    failure: Failure
    delay: timedelta | None = None
    is_outage: bool = False
    """It counts against the breaker of the task."""
    breaker: str | None = None
    """The one that it has to wait for, if that is why."""


class Withdrawn(msgspec.Struct, frozen=True):
    """The task stopped because somebody cancelled its job."""

    reason: str = ""


class Interrupted(msgspec.Struct, frozen=True):
    """The system, not the task, stopped it: a shutdown, a neighbour's kill, a buffer given back."""

    has_started: bool = True


class Unstarted(msgspec.Struct, frozen=True):
    """It has not begun, since there is no process where it could. That is not its fault, and may be mended soon."""

    failure: Failure
    is_unknown: bool = False
    """There is a process, but the code that it has found does not know the task."""


class Crashed(msgspec.Struct, frozen=True):
    """Its process, or its whole machine, is gone. `is_guilty` if this job is known to have done it."""

    failure: Failure
    is_guilty: bool = False
    with_worker: bool = False
    """Its whole worker went with it: a machine, a deploy, the power. Nobody was there to see whose fault it was."""


Outcome = Completed | Raised | Withdrawn | Interrupted | Unstarted | Crashed


def _read_retry_after(value: Span | datetime | None) -> timedelta | datetime | None:
    """Lenient, since the value was written by somebody else's server: what can't be read is None."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    if isinstance(value, timedelta):
        return min(max(value, timedelta(0)), LONGEST)
    try:
        seconds = float(value)
    except OverflowError:
        return LONGEST if value > 0 else timedelta(0)  # type: ignore[operator]  # an int that no float can hold
    except ValueError:
        return _read_date_or_span(str(value))
    if not math.isfinite(seconds):
        return None
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST.total_seconds()))


def _read_date_or_span(text: str) -> timedelta | datetime | None:
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        try:
            return parse_span(text)
        except ValueError:
            return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
