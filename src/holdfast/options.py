"""The options of tasks and of single jobs: their names and types for the editor, their checks for everybody else."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypedDict
from uuid import UUID

from holdfast.codec import check_payload
from holdfast.errors import InvalidOption, InvalidPayload
from holdfast.guard import Breaker
from holdfast.ids import check_id
from holdfast.job import Delivery
from holdfast.limits import Limit, Limits, Order, Rate
from holdfast.retry import Retry
from holdfast.span import Span, format_span, parse_span
from holdfast.store import check_name
from holdfast.template import Template

Priority = int | Literal["high", "default", "low"]
"""From 0 to 9, the higher the sooner; high is 8, default 5, low 2."""

_PRIORITIES: Final = {"high": 8, "default": 5, "low": 2}
_MOST_TAGS: Final = 20
_LARGEST_CONTEXT: Final = 16 * 1024
_LONGEST_KEY: Final = 512
_SOFT_PART: Final = 0.9
_LONGEST_REASON: Final = 1000
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(3000, 1, 1, tzinfo=UTC)


class TaskOptions(TypedDict, total=False):
    """What a task may be declared with."""

    name: str
    aliases: Sequence[str]
    queue: str
    priority: Priority
    retry: Retry
    soft_timeout: Span
    timeout: Span
    expires: Span
    idempotency_key: str
    unique: Unique
    rate: Rate
    limit: Limit
    order: str | Order
    fair: str
    breaker: Breaker
    delivery: Literal["at_least_once", "at_most_once", "transactional"]
    isolation: Literal["process"] | None
    redact: Sequence[str]


class JobOptions(TypedDict, total=False):
    """What a single job may be enqueued with."""

    tx: object
    queue: str
    priority: Priority
    delay: Span
    at: datetime | str
    expires: Span | datetime
    idempotency_key: str
    tags: Sequence[str]
    context: Mapping[str, Any]
    id: UUID | str
    wait: Span


@dataclass(frozen=True, init=False)
class Unique:
    """While an equal job is unfinished, or within `window` of its enqueue, enqueuing returns that job.

    Jobs are equal if `key`, a template over the arguments such as "{url}", comes out the same.
    """

    key: Template
    window: timedelta | None

    def __init__(self, key: str, window: Span | None = None) -> None:
        object.__setattr__(self, "key", Template(key))
        object.__setattr__(self, "window", None if window is None else parse_span(window, "Unique(window)"))


@dataclass(frozen=True, init=False)
class TaskDefaults:
    """What the tasks of an app have if they don't say otherwise."""

    queue: str
    priority: int
    retry: Retry
    soft_timeout: timedelta
    timeout: timedelta
    expires: timedelta | None

    def __init__(
        self,
        *,
        queue: str = "default",
        priority: Priority = "default",
        retry: Retry | None = None,
        soft_timeout: Span | None = None,
        timeout: Span = "300s",
        expires: Span | None = None,
    ) -> None:
        soft, hard = check_timeouts(soft_timeout, timeout)
        set_field = object.__setattr__
        set_field(self, "queue", check_name(queue, "queue"))
        set_field(self, "priority", check_priority(priority))
        set_field(self, "retry", Retry() if retry is None else check_retry(retry))
        set_field(self, "soft_timeout", soft)
        set_field(self, "timeout", hard)
        set_field(self, "expires", None if expires is None else parse_span(expires, "expires"))


@dataclass(frozen=True)
class TaskSettings:
    """What a task was declared with, checked, with the defaults filled in."""

    name: str
    aliases: tuple[str, ...]
    queue: str
    priority: int
    retry: Retry
    soft_timeout: timedelta
    timeout: timedelta
    expires: timedelta | None
    idempotency_key: Template | None
    unique: Unique | None
    limits: Limits
    breaker: Breaker | None
    delivery: Delivery
    isolation: Literal["process"] | None
    redact: tuple[str, ...]

    @property
    def max_attempts(self) -> int:
        return 1 if self.delivery is Delivery.AT_MOST_ONCE else self.retry.attempts


def check_task_options(options: TaskOptions, name: str, defaults: TaskDefaults) -> TaskSettings:
    """Check what a task was declared with."""
    refuse_unknown(options, TaskOptions, f"task {name!r}")
    soft, hard = defaults.soft_timeout, defaults.timeout
    if "timeout" in options or "soft_timeout" in options:
        soft, hard = check_timeouts(options.get("soft_timeout"), options.get("timeout", defaults.timeout))
    expires = options.get("expires")
    key = options.get("idempotency_key")
    unique = options.get("unique")
    if unique is not None and not isinstance(unique, Unique):
        raise InvalidOption(f"task {name!r}: unique= takes Unique('{{argument}}', window='10m').")
    delivery = _delivery(options.get("delivery", "at_least_once"))
    isolation = _isolation(options.get("isolation"), name)
    if delivery is Delivery.TRANSACTIONAL and isolation is not None:
        raise InvalidOption(
            f"task {name!r}: delivery='transactional' and isolation='process' can't go together. Leave one out, "
            "or make a task of its own of what needs a process of its own."
        )
    return TaskSettings(
        name=check_name(name, "name"),
        aliases=tuple(check_name(alias, "aliases") for alias in check_texts(options.get("aliases", ()), "aliases")),
        queue=check_name(options.get("queue", defaults.queue), "queue"),
        priority=check_priority(options.get("priority", defaults.priority)),
        retry=check_retry(options.get("retry", defaults.retry)),
        soft_timeout=soft,
        timeout=hard,
        expires=defaults.expires if expires is None else parse_span(expires, "expires"),
        idempotency_key=None if key is None else Template(key),
        unique=unique,
        limits=_limits(options, name),
        breaker=_breaker(options.get("breaker"), name),
        delivery=delivery,
        isolation=isolation,
        redact=check_texts(options.get("redact", ()), "redact"),
    )


@dataclass(frozen=True)
class JobSettings:
    """The options of one job, checked. None means: as the task says."""

    tx: object | None = None
    queue: str | None = None
    priority: int | None = None
    delay: timedelta | None = None
    at: datetime | None = None
    expires_in: timedelta | None = None
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    tags: tuple[str, ...] = ()
    context: str | None = None
    id: UUID | None = None
    wait: timedelta = timedelta(seconds=5)


PLAIN: Final = JobSettings()


def check_job_options(options: JobOptions) -> JobSettings:
    """Check the options of a job. Everything wrong is found here, before anything is sent."""
    if not options:
        return PLAIN
    refuse_unknown(options, JobOptions, "options()")
    expires = options.get("expires")
    expires_at = check_time(expires, "expires") if isinstance(expires, datetime) else None
    delay, at = options.get("delay"), options.get("at")
    if delay is not None and at is not None:
        raise InvalidOption("delay= and at= can't both be given. Leave one out.")
    queue, priority, id, wait = options.get("queue"), options.get("priority"), options.get("id"), options.get("wait")
    return JobSettings(
        tx=options.get("tx"),
        queue=None if queue is None else check_name(queue, "queue"),
        priority=None if priority is None else check_priority(priority),
        delay=None if delay is None else parse_span(delay, "delay"),
        at=None if at is None else check_time(at, "at"),
        expires_in=None if expires is None or isinstance(expires, datetime) else parse_span(expires, "expires"),
        expires_at=expires_at,
        idempotency_key=_key(options.get("idempotency_key")),
        tags=_tags(options.get("tags", ())),
        context=_context(options.get("context")),
        id=None if id is None else check_id(id),
        wait=PLAIN.wait if wait is None else parse_span(wait, "wait"),
    )


# ── single values ────────────────────────────────────────────────────────────────────────────────────────────────────


def check_priority(value: object) -> int:
    if isinstance(value, str) and value in _PRIORITIES:
        return _PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 9:
        return value
    raise InvalidOption("priority must be a number from 0 to 9, higher first, or 'high', 'default' or 'low'.")


def check_retry(value: object) -> Retry:
    if not isinstance(value, Retry):
        raise InvalidOption("retry= takes Retry(5, base='1s', …).")
    return value


def check_timeouts(soft: Span | None, hard: Span) -> tuple[timedelta, timedelta]:
    """The soft and the hard timeout. Given alone, the hard one leaves a tenth of itself for cleaning up."""
    hard_span = parse_span(hard, "timeout")
    soft_span = hard_span * _SOFT_PART if soft is None else parse_span(soft, "soft_timeout")
    if not timedelta(0) < soft_span < hard_span:
        raise InvalidOption(
            f"soft_timeout={format_span(soft_span)} must be more than nothing and less than "
            f"timeout={format_span(hard_span)}, to leave time for cleaning up."
        )
    return soft_span, hard_span


def check_time(value: datetime | str, name: str) -> datetime:
    """A moment that is the same everywhere: with its time zone."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidOption(
                f"{name}= is not a time. Write '2026-12-31T23:59:59+00:00', or pass a datetime."
            ) from None
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name}= takes a datetime with a time zone.")
    if value.tzinfo is None:
        raise InvalidOption(f"{name}= has no time zone. Use datetime.now(UTC), or add tzinfo=….")
    try:
        moment = value.astimezone(UTC)
    except OverflowError:
        moment = EARLIEST - timedelta(days=1)
    if not EARLIEST <= moment < LATEST:
        raise InvalidOption(f"{name}= must lie between the years 1970 and 2999. Give a time that a job can be due at.")
    return moment


def check_reason(value: object, name: str = "reason=") -> str:
    """Why something was done, in words that every store can keep and every terminal can show."""
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" or character == "\0" for character in value):
        raise InvalidOption(f"{name} takes a text without NUL or lone surrogates.")
    return value[:_LONGEST_REASON]


def _delivery(value: object) -> Delivery:
    try:
        return Delivery(value)  # type: ignore[arg-type]
    except ValueError:
        names = ", ".join(f"'{delivery}'" for delivery in Delivery)
        raise InvalidOption(f"delivery must be one of {names}.") from None


def _limits(options: TaskOptions, task: str) -> Limits:
    rate, limit, order, fair = (options.get(name) for name in ("rate", "limit", "order", "fair"))
    if rate is not None and not isinstance(rate, Rate):
        raise InvalidOption(f"task {task!r}: rate= takes Rate(100, '1m', key='{{argument}}').")
    if limit is not None and not isinstance(limit, Limit):
        raise InvalidOption(f"task {task!r}: limit= takes Limit(4, key='{{argument}}').")
    if isinstance(order, str):
        order = Order(order)
    if order is not None and not isinstance(order, Order):
        raise InvalidOption(f"task {task!r}: order= takes a template such as '{{argument}}', or Order('{{argument}}').")
    if fair is not None and not isinstance(fair, str):
        raise InvalidOption(f"task {task!r}: fair= takes a template such as '{{tenant}}'.")
    return Limits(rate, limit, order, None if fair is None else Template(fair))


def _breaker(value: object, task: str) -> Breaker | None:
    if value is not None and not isinstance(value, Breaker):
        raise InvalidOption(f"task {task!r}: breaker= takes a breaker of the app, such as hf.breaker('stripe').")
    return value


def _isolation(value: object, task: str) -> Literal["process"] | None:
    if value not in (None, "process"):
        raise InvalidOption(f"task {task!r}: isolation= takes 'process', or nothing.")
    return "process" if value == "process" else None


def _key(value: object) -> str | None:
    return None if value is None else check_name(value, "idempotency_key", _LONGEST_KEY)


def _tags(value: Sequence[str]) -> tuple[str, ...]:
    tags = check_texts(value, "tags")
    if len(tags) > _MOST_TAGS:
        raise InvalidOption(f"tags: {len(tags)} are too many for one job; at most {_MOST_TAGS}.")
    return tuple(dict.fromkeys(check_name(tag, "tags") for tag in tags))


def _context(value: Mapping[str, Any] | None) -> str | None:
    if not value:
        return None
    try:
        text = check_payload(value, task="context")
    except InvalidPayload as error:
        raise InvalidOption(f"context= takes plain data by name: {error}") from error
    if len(text) > _LARGEST_CONTEXT:
        raise InvalidOption(f"context= is {len(text):,} characters of JSON, the limit is {_LARGEST_CONTEXT:,}.")
    return text


def check_texts(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidOption(f"{name} takes a list of texts, such as {name}=['one'].")
    texts: tuple[Any, ...] = tuple(value)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidOption(f"{name} takes a list of texts, such as {name}=['one'].")
    return texts


def refuse_unknown(given: Mapping[str, Any], known: Any, where: str) -> None:
    names = list(known.__annotations__)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"Did you mean {near[0]}=?" if near else f"There are: {', '.join(names)}."
            raise InvalidOption(f"{where}: there is no option {name}=. {hint}")
