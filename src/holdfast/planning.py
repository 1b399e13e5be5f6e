"""The options of schedules: their names and types for the editor, their checks for everybody else."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, TypedDict, TypeVar

from holdfast.errors import InvalidOption
from holdfast.options import Priority, TaskOptions, check_priority, check_time
from holdfast.schedule import Catchup, Overlap
from holdfast.span import Span, parse_span
from holdfast.store import check_name
from holdfast.timing import find_zone, first_shown

Choice = TypeVar("Choice", bound=StrEnum)

_PARTS: Final = ("days", "hours", "minutes", "seconds")


class ScheduleOptions(TypedDict, total=False):
    """How a schedule fires."""

    tz: str
    catchup: Literal["skip", "once", "all"]
    overlap: Literal["skip", "queue"]
    jitter: Span
    args: Mapping[str, Any]


class CronOptions(TaskOptions, ScheduleOptions, total=False):
    """What `@hf.cron` and `@hf.at` take beside the time: how to fire, and what the task is declared with."""


class EveryOptions(CronOptions, total=False):
    """What `@hf.every` takes, with the parts of its interval."""

    days: float
    hours: float
    minutes: float
    seconds: float


class PlanOptions(ScheduleOptions, total=False):
    """What a schedule is added or changed with at run time. A queue or priority of None: as the task says."""

    cron: str
    every: Span
    at: datetime | str
    queue: str | None
    priority: Priority | None


def check_schedule_options(options: Mapping[str, Any], tz: str = "UTC") -> dict[str, Any]:
    """The fields of a plan that these options give, each checked by itself. Whether they fit, `check_plan` says.

    Where they name no time zone, times are of `tz`.
    """
    fields: dict[str, Any] = {}
    if "tz" in options:
        fields["tz"] = find_zone(options["tz"]).key
    if "cron" in options:
        fields["cron"] = options["cron"]
    if "every" in options:
        fields["every"] = parse_span(options["every"], "every")
    if "at" in options:
        fields["at"] = _moment(options["at"], fields.setdefault("tz", tz))
    if "catchup" in options:
        fields["catchup"] = _choice(options["catchup"], Catchup, "catchup")
    if "overlap" in options:
        fields["overlap"] = _choice(options["overlap"], Overlap, "overlap")
    if "jitter" in options:
        fields["jitter"] = parse_span(options["jitter"], "jitter")
    if "queue" in options:
        fields["queue"] = None if options["queue"] is None else check_name(options["queue"], "queue")
    if "priority" in options:
        fields["priority"] = None if options["priority"] is None else check_priority(options["priority"])
    return fields


def check_interval(interval: Span | None, options: Mapping[str, Any]) -> timedelta:
    """An interval, as a span or in parts."""
    parts = {name: options[name] for name in _PARTS if name in options}
    if (interval is None) == (not parts):
        raise InvalidOption("every() takes an interval, such as every('5m') or every(minutes=5), and not both.")
    if interval is not None:
        return parse_span(interval, "every")
    try:
        return parse_span(timedelta(**parts), "every")
    except (TypeError, OverflowError):
        raise InvalidOption("every() takes numbers, such as every(minutes=5).") from None


def check_schedule_args(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidOption("args= takes arguments by name, such as args={'tenant': 'acme'}.")
    return dict(value)


def _choice(value: object, kind: type[Choice], name: str) -> Choice:
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidOption(f"{name}= is one of {', '.join(repr(each.value) for each in kind)}.") from None


def _moment(value: object, tz: str) -> datetime:
    """A moment; without a zone of its own, what a clock shows in this one."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidOption("at= is not a time. Write '2026-12-31 23:59:59', or pass a datetime.") from None
    if not isinstance(value, datetime):
        raise InvalidOption("at= takes a datetime, or a text such as '2026-12-31 23:59:59'.")
    if value.tzinfo is None:
        check_time(value.replace(tzinfo=UTC), "at")
        value = first_shown(value, find_zone(tz))
    return check_time(value, "at")
