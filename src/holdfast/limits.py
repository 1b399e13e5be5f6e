"""Limits, as tasks declare them: how many jobs may start in a time, run at once, or run one after the other, by key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from holdfast.errors import InvalidOption
from holdfast.span import Span, parse_span
from holdfast.template import Template

MOST: Final = 1_000_000
LONGEST_SPAN: Final = timedelta(days=31)


# ── what a task declares ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, init=False)
class Rate:
    """At most `limit` starts in any window of `per`: of the task, or of each `key`, a template over the arguments.

    Tasks that give the same `name` share it.
    """

    limit: int
    per: timedelta
    key: Template | None
    name: str | None

    def __init__(self, limit: int, per: Span, key: str | None = None, *, name: str | None = None) -> None:
        set_field = object.__setattr__
        set_field(self, "limit", check_most(limit, "Rate(limit)"))
        set_field(self, "per", _check_per(per))
        set_field(self, "key", None if key is None else Template(key))
        set_field(self, "name", _check_name(name, "Rate(name)"))


@dataclass(frozen=True, init=False)
class Limit:
    """At most `most` at work at once: of the task, or of each `key`, a template over the arguments.

    Tasks that give the same `name` share it.
    """

    most: int
    key: Template | None
    name: str | None

    def __init__(self, most: int, key: str | None = None, *, name: str | None = None) -> None:
        set_field = object.__setattr__
        set_field(self, "most", check_most(most, "Limit(most)"))
        set_field(self, "key", None if key is None else Template(key))
        set_field(self, "name", _check_name(name, "Limit(name)"))


@dataclass(frozen=True, init=False)
class Order:
    """One after the other for each `key`, a template over the arguments, in the order of becoming ready.

    A job that fails keeps its place until it has succeeded, was cancelled, or went dead. What then: with
    `on_dead="go_on"` the next one runs; with `"block"` the key waits until somebody retries or discards the dead one.
    """

    key: Template
    is_blocking: bool
    name: str | None

    def __init__(self, key: str, *, on_dead: Literal["go_on", "block"] = "go_on", name: str | None = None) -> None:
        if on_dead not in ("go_on", "block"):
            raise InvalidOption("Order(on_dead) must be 'go_on' or 'block'.")
        set_field = object.__setattr__
        set_field(self, "key", Template(key))
        set_field(self, "is_blocking", on_dead == "block")
        set_field(self, "name", _check_name(name, "Order(name)"))


def check_most(value: object, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidOption(f"{option} must be a whole number from 1 to {MOST:,}.")
    return value


def _check_per(per: Span) -> timedelta:
    span = parse_span(per, "Rate(per)")
    if not timedelta(milliseconds=100) <= span <= LONGEST_SPAN:
        raise InvalidOption("Rate(per) must be from 100 ms to 31 days.")
    return span


def _check_name(name: object, option: str) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise InvalidOption(f"{option} must be 1 to 200 printable characters.")
    return name
