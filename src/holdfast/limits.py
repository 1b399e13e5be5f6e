"""Limits, as tasks declare them: how many jobs may start in a time, run at once, or run one after the other, by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from holdfast.errors import InvalidOption
from holdfast.gates import (
    LONGEST_TRAIN,
    SHORT_WINDOW,
    SLACK,
    Gate,
    GateKind,
    GateRule,
    LineRule,
    lets_through,
    opens_at,
    used,
)
from holdfast.job import Delivery
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
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

    @property
    def slack(self) -> timedelta:
        """The longest time from a job's claim to its start for which the rate allows."""
        return self.per / SLACK


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


class LimitDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit as it is published, for services without the code."""

    kind: GateKind
    name: str
    key: str | None
    most: int = 1
    per: int = 0
    """Microseconds."""
    is_blocking: bool = False


@dataclass(frozen=True)
class Limits:
    """All limits of a task."""

    rate: Rate | None = None
    limit: Limit | None = None
    order: Order | None = None
    fair: Template | None = None

    @property
    def has_short_rate(self) -> bool:
        """Whether its jobs must start when they are claimed: see gates.py."""
        return self.rate is not None and self.rate.per // MICROSECOND < SHORT_WINDOW

    @property
    def templates(self) -> list[Template]:
        keys = [each.key for each in (self.rate, self.limit, self.order) if each is not None]
        return [key for key in (*keys, self.fair) if key is not None]

    def definitions(self, task: str, delivery: Delivery) -> tuple[LimitDefinition, ...]:
        """As they are published."""
        found: list[LimitDefinition] = []
        if self.limit is not None:
            found.append(
                LimitDefinition(GateKind.LIMIT, self.limit.name or task, _text(self.limit.key), self.limit.most)
            )
        if self.rate is not None:
            per = self.rate.per // MICROSECOND
            name = self.rate.name or task
            found.append(LimitDefinition(GateKind.RATE, name, _text(self.rate.key), self.rate.limit, per))
        if self.order is not None:
            name = self.order.name or task
            # What may run only once is never held by a worker that does not run it yet: it would be lost with that.
            longest = 1 if delivery is Delivery.AT_MOST_ONCE else LONGEST_TRAIN
            key = self.order.key.text
            found.append(LimitDefinition(GateKind.ORDER, name, key, longest, is_blocking=self.order.is_blocking))
        if self.fair is not None:
            found.append(LimitDefinition(GateKind.FAIR, "", self.fair.text))
        return tuple(found)


LimitKind = Literal["limit", "rate", "order", "fair"]
_KINDS: Final[dict[GateKind, LimitKind]] = {
    GateKind.LIMIT: "limit",
    GateKind.RATE: "rate",
    GateKind.ORDER: "order",
    GateKind.FAIR: "fair",
}
_GATES: Final = {kind: gate for gate, kind in _KINDS.items()}


class LimitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of one key, as it stands: what is let through, how much of that is used, and who waits for it."""

    kind: LimitKind
    name: str
    key: str
    declared: int
    """How many, as the code says."""
    override: int | None = None
    """How many, as somebody has set it since."""
    per: timedelta | None = None
    used: int = 0
    waiting: int = 0
    """Ready jobs in lines that are held up by it; counted up to a thousand."""
    holder: UUID | None = None
    """Of an order: the job that runs, or will run again; None if a worker has several in hand, one after the other."""
    next_at: datetime | None = None
    """Of a rate that is used up: when it has room again."""

    @property
    def most(self) -> int | None:
        """How many are let through; None if there is no bound."""
        if self.kind == "fair":
            return None
        return self.declared if self.override is None else self.override


def limit_record(gate: Gate, waiting: int, now: datetime) -> LimitRecord:
    moment = to_microseconds(now)
    opening = opens_at(gate, moment)
    return LimitRecord(
        kind=_KINDS[gate.kind],
        name=gate.name,
        key=gate.key,
        declared=lets_through(gate),
        override=gate.override,
        per=gate.per * MICROSECOND if gate.per else None,
        used=used(gate, moment),
        waiting=waiting,
        holder=gate.holder,
        next_at=None if opening is None else from_microseconds(opening),
    )


def gate_kind(kind: object, option: str = "kind") -> GateKind:
    """The kind of limit that somebody means."""
    for name, gate in _GATES.items():
        if name == kind:
            return gate
    raise InvalidOption(f"{option} is one of {', '.join(_GATES)}.")


class LimitRecipe:
    """How the arguments of a job tell which limits it is under."""

    def __init__(self, definitions: Sequence[LimitDefinition]) -> None:
        self._parts = [(each, None if each.key is None else Template(each.key)) for each in definitions]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def line(self, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> LineRule:
        return LineRule(
            tuple(
                GateRule(
                    each.kind,
                    each.name,
                    "" if template is None else template.render(arguments, defaults),
                    each.most,
                    each.per,
                    each.is_blocking,
                )
                for each, template in self._parts
            )
        )


def _text(template: Template | None) -> str | None:
    return None if template is None else template.text


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
