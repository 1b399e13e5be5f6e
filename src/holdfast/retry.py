"""When a failed job is tried again: the policy of a task, the classes of failures, the backoff."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.errors import InvalidOption, InvalidPayload
from holdfast.outcome import BreakerOpen, Cancel, GiveUp, PoolFull, RateLimited, Snooze, TryAgain, Verdict
from holdfast.span import Span, format_span, parse_span

MOST_ATTEMPTS: Final = 1000
POOL_DELAY: Final = timedelta(seconds=5)
POOL_TRIES: Final = 3

_SEVERITY: Final = (
    Verdict.SNOOZE,
    Verdict.BREAKER,
    Verdict.THROTTLED,
    Verdict.AGAIN,
    Verdict.POOL_FULL,
    Verdict.TRANSIENT,
    Verdict.CANCEL,
    Verdict.PERMANENT,
)

_POOL_EXCEPTIONS = frozenset(
    {
        "asyncpg.exceptions.TooManyConnectionsError",
        "psycopg.errors.TooManyConnections",
        "psycopg_pool.PoolTimeout",
        "psycopg_pool.TooManyRequests",
        "sqlalchemy.exc.TimeoutError",
    }
)
"""How the pools that people use say that they are exhausted; by name, so that none of them is imported."""


@dataclass(frozen=True, init=False)
class Retry:
    """How a task is retried: `attempts` runs in all, `base`, 2 x `base`, 4 x `base` … apart, at most `cap`.

    With `jitter` the wait is drawn evenly between nothing and that ("full jitter"), so that
    jobs which failed together don't come back together. Only exceptions listed in `on` are retried
    (by default all), never those in `never_on`.
    """

    attempts: int
    base: timedelta
    cap: timedelta
    jitter: bool
    on: tuple[type[Exception], ...]
    never_on: tuple[type[Exception], ...]

    def __init__(
        self,
        attempts: int = 5,
        *,
        base: Span = "1s",
        cap: Span = "10m",
        jitter: bool = True,
        on: Sequence[type[Exception]] = (Exception,),
        never_on: Sequence[type[Exception]] = (),
    ) -> None:
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= MOST_ATTEMPTS:
            raise InvalidOption(f"Retry(attempts) is the number of runs in all, from 1 to {MOST_ATTEMPTS}.")
        set_field = object.__setattr__
        set_field(self, "attempts", attempts)
        set_field(self, "base", parse_span(base, "Retry(base)"))
        set_field(self, "cap", parse_span(cap, "Retry(cap)"))
        set_field(self, "jitter", bool(jitter))
        set_field(self, "on", _exceptions(on, "on"))
        set_field(self, "never_on", _exceptions(never_on, "never_on"))
        if self.base > self.cap:
            raise InvalidOption(
                f"Retry(base={format_span(self.base)}) is longer than its cap={format_span(self.cap)}. Raise the cap."
            )


def backoff(policy: Retry, attempt: int, chance: float) -> timedelta:
    """The wait after this attempt (the first is 1); `chance` is a random number from 0 to 1."""
    doublings = min(max(attempt, 1) - 1, 62)
    full = min(policy.cap.total_seconds(), policy.base.total_seconds() * 2.0**doublings)
    return timedelta(seconds=full * chance if policy.jitter else full)


def classify(error: BaseException, policy: Retry, now: datetime) -> tuple[Verdict, timedelta | None]:
    """Say what kind of failure an exception is, and the delay it asks for, if it does.

    The order matters: what the task says in so many words comes before the policy's lists,
    and the lists before what is known of other people's exceptions. Of a group, the severest counts.
    """
    match error:
        case BaseExceptionGroup():
            return max(
                (classify(each, policy, now) for each in error.exceptions),
                key=lambda found: (_SEVERITY.index(found[0]), found[1] or timedelta(0)),
            )
        case GiveUp() | InvalidPayload():
            return Verdict.PERMANENT, None
        case Snooze(delay=delay):
            return Verdict.SNOOZE, delay
        case TryAgain(delay=delay):
            return Verdict.AGAIN, delay
        case RateLimited():
            return Verdict.THROTTLED, error.delay_from(now)
        case BreakerOpen(delay=delay):
            return Verdict.BREAKER, delay
        case Cancel():
            return Verdict.CANCEL, None
        case PoolFull():
            return Verdict.POOL_FULL, POOL_DELAY
        case Exception() if isinstance(error, policy.never_on) or not isinstance(error, policy.on):
            return Verdict.PERMANENT, None
        case _ if _is_pool_exception(error):
            return Verdict.POOL_FULL, POOL_DELAY
        case _:
            return Verdict.TRANSIENT, None


def _is_pool_exception(error: BaseException) -> bool:
    return any(f"{kind.__module__}.{kind.__qualname__}" in _POOL_EXCEPTIONS for kind in type(error).__mro__)


def _exceptions(given: Sequence[type[Exception]], name: str) -> tuple[type[Exception], ...]:
    if not isinstance(given, Sequence) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in given
    ):
        raise InvalidOption(f"Retry({name}) takes a list of exception classes, such as [ConnectionError].")
    return tuple(given)
