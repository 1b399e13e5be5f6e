"""Gates: what jobs under a limit are claimed through. Each knows how much room it has, and when it will have some.

What waits at gates stands in lines: see turns.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic
from uuid import UUID

import msgspec
from msgspec.structs import replace

# By what a store knows lines, gates and jobs among themselves: their ids, or numbers.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Key = TypeVar("Key", default=UUID)
else:
    from typing import TypeVar

    Key = TypeVar("Key", bound=UUID)  # what msgspec reads where nothing else is said

LONGEST_TRAIN: Final = 20
"""Jobs of one order that may be claimed together."""
ANY_NUMBER: Final = 1_000_000_000
_BUCKETS: Final = 60
"""A window is remembered in so many parts, each of which is taken to have come at its end."""
SLACK: Final = 64
"""A window is taken to be a 64th longer than it is: for the moment between a job's claim and its start."""
LONGEST_AHEAD: Final = 800_000
"""Microseconds from a job's claim to its start, if its worker has fetched it ahead."""
SHORT_WINDOW: Final = LONGEST_AHEAD * SLACK
"""Microseconds: jobs under a rate with a shorter window must start when they are claimed."""
MOST_PASSED_OVER: Final = 500
"""Lines that lead to such a rate, behind which a claim looks for others when it may take no more of those."""


class GateKind(IntEnum):
    """Which rule a gate keeps."""

    LIMIT = 1
    """So many at work at once. A job holds a place from its claim until it is settled."""
    RATE = 2
    """So many claims in a window."""
    ORDER = 3
    """One after the other. Whoever was claimed comes first until it has ended; several may be claimed as a train."""
    FAIR = 4
    """No bound: its lines take turns as if they were one. Each queue has its own."""


class GateRule(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, array_like=True):
    """A gate as a new job names it."""

    kind: GateKind
    name: str
    key: str
    most: int = 1
    """Of an order: how many may be claimed together, to be run one after the other."""
    per: int = 0
    """Microseconds."""
    is_blocking: bool = False

    @property
    def id(self) -> UUID:
        return _gate_id(self.kind, self.name, self.key)


class LineRule(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Under which rules a new job stands; at most one of each kind."""

    gates: tuple[GateRule, ...]

    def of(self, kind: GateKind) -> GateRule | None:
        return next((gate for gate in self.gates if gate.kind is kind), None)

    def gates_in(self, queue: str) -> tuple[GateRule, ...]:
        """What jobs of a queue are claimed through. Tenants take turns in each queue by itself."""
        return tuple(replace(gate, name=queue) if gate.kind is GateKind.FAIR else gate for gate in self.gates)

    def id_for(self, queue: str, priority: int) -> UUID:
        """The line of those with these very rules. In an order, priority does not count: the line goes on at any."""
        return _line_id(self, queue, priority)


# The same few are asked for again and again.
@lru_cache(maxsize=10_000)
def _line_id(rule: LineRule, queue: str, priority: int) -> UUID:
    rank = -1 if rule.of(GateKind.ORDER) else priority
    gates = [(int(gate.kind), gate.name, gate.key) for gate in rule.gates]
    return _id_of(("line", queue, rank, sorted(gates)))


@lru_cache(maxsize=10_000)
def _gate_id(kind: GateKind, name: str, key: str) -> UUID:
    return _id_of(("gate", int(kind), name, key))


def _id_of(name: Any) -> UUID:
    return UUID(bytes=hashlib.blake2b(msgspec.json.encode(name), digest_size=16).digest())


class Gate(msgspec.Struct, Generic[Key], frozen=True, array_like=True):
    """A gate as the store keeps it."""

    id: Key
    kind: GateKind
    name: str
    key: str
    declared: int = 1
    """How many, as the code says."""
    override: int | None = None
    """How many, as somebody has set it since."""
    per: int = 0
    is_blocking: bool = False
    held: int = 0
    """Of a limit: the places that are taken. Of an order: the jobs that were claimed and have not been settled."""
    holder: Key | None = None
    """Of an order: the job that will run again before all others, or was claimed by itself."""
    log: tuple[tuple[int, int], ...] = ()
    """Of a rate: when how many were claimed."""
    next_at: int | None = None
    """Of a rate, when lines are parked at it: when it will have room."""
    turn: int = 0
    """Of a tenant: the highest turn that was given to any of its lines."""
    lines: int = 0
    """How many lines lead through it."""

    @property
    def most(self) -> int:
        return self.declared if self.override is None else self.override


def made(rule: GateRule) -> Gate[UUID]:
    return Gate(rule.id, rule.kind, rule.name, rule.key, rule.most, per=rule.per, is_blocking=rule.is_blocking)


def declared(gate: Gate[Key], rule: GateRule) -> Gate[Key]:
    """What the code says now."""
    return replace(gate, declared=rule.most, per=rule.per, is_blocking=rule.is_blocking)


def is_same_rule(one: Gate[Key], other: Gate[Key]) -> bool:
    """Whether they differ only in what has passed through them."""
    return (
        one.declared == other.declared
        and one.override == other.override
        and one.per == other.per
        and one.is_blocking == other.is_blocking
        and one.lines == other.lines
    )


def is_held_on_to(gate: Gate[Any]) -> bool:
    """Whether jobs take something from it that they give back."""
    return gate.kind is GateKind.LIMIT or gate.kind is GateKind.ORDER


def places(gate: Gate[Any]) -> int:
    """Of a limit or an order: how many are free. An order has one while nobody is at work, also for its holder."""
    return max(0, gate.most - gate.held) if gate.kind is GateKind.LIMIT else int(gate.held == 0)


def longest_train(gate: Gate[Any]) -> int:
    """Of an order: how many of its jobs may be claimed together, to be run one after the other.

    Only if they all come from one line: where several lead to it, nobody knows in which order those would go on if they
    were given back.
    """
    if gate.held:
        return 0
    return gate.most if gate.lines == 1 and gate.holder is None else 1


def room(gate: Gate[Any], now: int) -> int:
    """How many more may be claimed through it. An order lets its holder through, and nobody else."""
    match gate.kind:
        case GateKind.LIMIT:
            return places(gate)
        case GateKind.RATE:
            return max(0, gate.most - sum(count for _, count in _recent(gate, now)))
        case GateKind.ORDER:
            return places(gate)
        case GateKind.FAIR:
            return ANY_NUMBER


def used(gate: Gate[Any], now: int) -> int:
    """How many count against what it lets through: those at work, those that started in the window, or the holder."""
    match gate.kind:
        case GateKind.LIMIT:
            return gate.held
        case GateKind.RATE:
            return sum(count for _, count in _recent(gate, now))
        case GateKind.ORDER:
            return int(is_held(gate))
        case GateKind.FAIR:
            return 0


def is_held(gate: Gate[Any]) -> bool:
    """Of an order: whether somebody is at work, or comes before all others."""
    return gate.held > 0 or gate.holder is not None


def is_train(gate: Gate[Any]) -> bool:
    """Of an order: whether a worker has several of its jobs in hand."""
    return gate.kind is GateKind.ORDER and gate.held > 0 and gate.holder is None


def lets_through(gate: Gate[Any]) -> int:
    """How many are let through at a time, as the code says."""
    return 1 if gate.kind is GateKind.ORDER else gate.declared


def must_start_at_once(gate: Gate[Any]) -> bool:
    """Whether a job that was claimed through it may not wait for a free slot: its start would be counted too early.

    Workers give back within LONGEST_AHEAD what they could not start, and a long window has slack for that.
    """
    return gate.kind is GateKind.RATE and gate.per < SHORT_WINDOW


def taken(gate: Gate[Key], jobs: Sequence[Key], now: int) -> Gate[Key]:
    """After these jobs were claimed through it."""
    if not jobs:
        return gate
    match gate.kind:
        case GateKind.LIMIT:
            return replace(gate, held=gate.held + len(jobs))
        case GateKind.RATE:
            return replace(gate, log=_logged(gate, len(jobs), now))
        case GateKind.ORDER:
            return replace(gate, held=gate.held + len(jobs), holder=jobs[0] if len(jobs) == 1 else None)
        case GateKind.FAIR:
            return gate


def opens_at(gate: Gate[Any], now: int) -> int | None:
    """When a rate has room again, if nothing is claimed meanwhile; None if it has some."""
    if gate.kind is not GateKind.RATE or room(gate, now):
        return None
    left = gate.most
    opening = now
    # The youngest that must be over before there is one place.
    for at, count in sorted(_recent(gate, now), reverse=True):
        left -= count
        opening = at + _window(gate)
        if left <= 0:
            break
    return max(opening, now + 1)


def _window(gate: Gate[Any]) -> int:
    return gate.per + gate.per // SLACK


def _recent(gate: Gate[Any], now: int) -> list[tuple[int, int]]:
    return [(at, count) for at, count in gate.log if at > now - _window(gate)]


def _logged(gate: Gate[Any], count: int, now: int) -> tuple[tuple[int, int], ...]:
    """One entry for each part of the window, at the time of the last claim in it: so it is never forgotten too soon."""
    recent = _recent(gate, now)
    if recent and recent[-1][0] // _width(gate) == now // _width(gate):
        at, before = recent.pop()
        return (*recent, (max(at, now), before + count))
    while len(recent) > _BUCKETS + 2:  # after a clock was set back
        (one, first), (other, second), *rest = recent
        recent = [(max(one, other), first + second), *rest]
    return (*recent, (now, count))


def _width(gate: Gate[Any]) -> int:
    return max(1, gate.per // _BUCKETS)


def vacated(gate: Gate[Key], job: Key, *, was_active: bool, is_over: bool, waits: bool = False) -> Gate[Key]:
    """After a job has left a worker's hands, or has come to its end.

    `is_over`: it will not run again, or not before somebody wants it to. A dead one blocks an order that says so. Who
    `waits` for its next run has the order until then; who is merely given back has its place in the line.
    """
    if not is_held_on_to(gate):
        return gate
    holder = gate.holder
    if gate.kind is GateKind.ORDER and is_over:
        holder = None if holder == job else holder
    elif gate.kind is GateKind.ORDER and waits:
        holder = job
    if not was_active and holder is gate.holder:
        return gate
    return replace(gate, held=max(0, gate.held - was_active), holder=holder)


def unused(gate: Gate[Key], claimed_at: int) -> Gate[Key]:
    """After a job that was claimed through it at that time has turned out not to have started."""
    if gate.kind is not GateKind.RATE:
        return gate
    part = claimed_at // _width(gate)
    for index, (at, count) in enumerate(gate.log):
        # Only in the part of the window where it was counted: if that is forgotten, others must not be for its sake.
        if at >= claimed_at and at // _width(gate) == part:
            rest = ((at, count - 1),) if count > 1 else ()
            return replace(gate, log=(*gate.log[:index], *rest, *gate.log[index + 1 :]))
    return gate


def is_idle(gate: Gate[Any], now: int) -> bool:
    """Whether nothing would be lost if it were made anew."""
    return not (gate.lines or gate.held or gate.holder or _recent(gate, now)) and gate.override is None


def is_full(gate: Gate[Any]) -> bool:
    """Whether nobody gets through before somebody leaves, who then opens what is parked at it."""
    return is_held_on_to(gate) and places(gate) == 0


def to_open(gate: Gate[Any], now: int) -> int:
    """How many of the lines that are parked at it have something to try for."""
    if gate.kind is GateKind.ORDER:
        return int(not is_held(gate))
    return room(gate, now)
