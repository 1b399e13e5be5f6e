"""Traffic: jobs that are under the very same limits stand in one line, and the line stands in the queue for them.

    job ──▶ line (queue, priority, its gates) ──▶ gates: limit, rate, order, fair

So a million jobs behind one key are one thing to pass over, not a million. A line is *open* while it may have
something to claim. If a gate has no room it is *parked* there, and is opened again when the gate has room, in the
order of turns. What has ready jobs is thus always open, or parked at a gate without room.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.gates import Gate, GateKind, LineRule, declared, made, opens_at, room, taken, to_open, vacated


class LineState(IntEnum):
    CLOSED = 0
    """Nothing is ready in it, as far as anybody knows."""
    OPEN = 1
    """There may be something to claim."""
    PARKED = 2
    """One of its gates has no room."""


class Line(msgspec.Struct, frozen=True):
    """A line as the store keeps it."""

    id: UUID
    queue: str
    priority: int
    gates: tuple[UUID, ...]
    state: LineState = LineState.CLOSED
    parked_at: UUID | None = None
    """The gate that it waits for."""
    turn: int = 0
    """Among the open lines of one queue and priority, the lowest is next."""


def line_of(rule: LineRule, queue: str, priority: int) -> Line:
    return Line(rule.id_for(queue, priority), queue, priority, tuple(gate.id for gate in rule.gates))


def opened(line: Line, gates: Mapping[UUID, Gate], current: int) -> tuple[Line, Gate | None]:
    """The line with a turn, and its tenant's gate if that has moved on. `current` is the lowest turn of open lines.

    Who comes new, or was away, begins with those whose turn it is: what he did not use is not made up for. The lines
    of one tenant get turns one after the other, so that many lines get no more than one.
    """
    tenant = next((gates[id] for id in line.gates if gates[id].kind is GateKind.FAIR), None)
    turn = max(line.turn, current)
    if tenant is not None:
        turn = max(turn, tenant.turn + 1)
        tenant = replace(tenant, turn=turn)
    return replace(line, state=LineState.OPEN, parked_at=None, turn=turn), tenant


class Allotted(msgspec.Struct, frozen=True):
    """What a claim takes from lines, and what they and their gates are like afterwards."""

    jobs: list[UUID]
    """In the order to start in."""
    rated: int
    """How many of them are under a rate."""
    lines: list[Line]
    """Those that have changed."""
    gates: dict[UUID, Gate]
    """All of them."""


def allot(
    lines: Sequence[Line],
    gates: Mapping[UUID, Gate],
    ready: Mapping[UUID, Sequence[UUID]],
    slots: int,
    now: int,
    *,
    most_rated: int | None = None,
) -> Allotted:
    """Who gets the free slots of one queue: decided job by job, by priority, in the order of turns, through every gate.

    `ready` are the jobs of each line, the next one first; there may be more than `slots`, but not fewer if the line
    has them. At most `most_rated` of those under a rate are taken: they have to start when they are claimed.
    """
    after = dict(gates)
    rooms = {id: room(gate, now) for id, gate in gates.items()}
    turns = {line.id: line.turn for line in lines}
    through: dict[UUID, list[UUID]] = {id: [] for id in gates}
    waiting = {line.id: candidates(ready[line.id], line, gates) for line in lines}
    rated = 0
    changed: dict[UUID, Line] = {}
    jobs: list[UUID] = []
    heap = [(-line.priority, line.turn, number) for number, line in enumerate(lines)]
    heapq.heapify(heap)
    while heap and len(jobs) < slots:
        rank, turn, number = heapq.heappop(heap)
        line = lines[number]
        mine, blocking = waiting[line.id]
        if blocking is None:
            blocking = next((id for id in line.gates if rooms[id] <= 0), None) if mine else None
        if blocking is not None:
            changed[line.id] = replace(line, state=LineState.PARKED, parked_at=blocking, turn=turns[line.id])
            continue
        if not mine:
            changed[line.id] = replace(line, state=LineState.CLOSED, turn=turns[line.id])
            continue
        is_rated = any(after[id].kind is GateKind.RATE for id in line.gates)
        if is_rated and most_rated is not None and rated >= most_rated:
            continue
        rated += is_rated
        job = mine.pop(0)
        jobs.append(job)
        turn += 1
        for id in line.gates:
            rooms[id] -= 1
            through[id].append(job)
            if after[id].kind is GateKind.FAIR:
                turn = max(turn, after[id].turn + 1)
                after[id] = replace(after[id], turn=turn)
        turns[line.id] = turn
        changed[line.id] = replace(line, turn=turn)
        heapq.heappush(heap, (rank, turn, number))
    for id, mine in through.items():
        after[id] = taken(after[id], mine, now)
    for line in changed.values():
        if line.parked_at is not None and line.state is LineState.PARKED:
            gate = after[line.parked_at]
            after[gate.id] = replace(gate, next_at=opens_at(gate, now))
    return Allotted(jobs, rated, list(changed.values()), after)


def candidates(ready: Sequence[UUID], line: Line, gates: Mapping[UUID, Gate]) -> tuple[list[UUID], UUID | None]:
    """A line's ready jobs in the order in which its order lets them through, and its gate if that lets none through."""
    order = next((gates[id] for id in line.gates if gates[id].kind is GateKind.ORDER), None)
    if order is None or order.holder is None or not ready:
        return list(ready), None
    if order.holder not in ready:
        return [], order.id
    return [order.holder, *(job for job in ready if job != order.holder)], None


# ── what happens to lines ────────────────────────────────────────────────────────────────────────────────────────────


class Ledger(Protocol):
    """Where a store keeps lines and gates, within one transaction."""

    def lines(self, ids: Iterable[UUID]) -> dict[UUID, Line]: ...

    def gates(self, ids: Iterable[UUID]) -> dict[UUID, Gate]: ...

    def open_lines(self, queue: str, priority: int, most: int) -> list[Line]:
        """Those whose turn is next."""
        ...

    def parked(self, wanted: Mapping[UUID, int]) -> list[Line]:
        """At each gate, so many of those that are parked there: by priority, then by turn."""
        ...

    def current_turns(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The lowest turn of the open lines of each queue and priority; nothing where there is none."""
        ...

    def ready(self, lines: Sequence[UUID], most: int) -> dict[UUID, list[UUID]]:
        """The ready jobs of each line, the next one first, at most so many."""
        ...

    def save(self, lines: Iterable[Line], gates: Iterable[Gate]) -> None: ...


class Departure(msgspec.Struct, frozen=True):
    """A job that is not in a worker's hands any more, or has come to its end."""

    job: UUID
    line: UUID
    was_active: bool
    is_over: bool
    """It will not run again, unless somebody wants it to."""
    is_dead: bool = False


def enter(ledger: Ledger, rules: Iterable[tuple[LineRule, str, int]]) -> None:
    """Jobs under these rules, in these queues with these priorities, are coming in."""
    wanted = {rule.id_for(queue, priority): (rule, queue, priority) for rule, queue, priority in rules}
    known_lines = ledger.lines(wanted)
    named = {gate.id: gate for rule, _, _ in wanted.values() for gate in rule.gates}
    known_gates = ledger.gates(named)
    gates = [
        declared(known_gates[id], rule) if id in known_gates else made(rule)
        for id, rule in named.items()
        if id not in known_gates or declared(known_gates[id], rule) != known_gates[id]
    ]
    ledger.save([line_of(*each) for id, each in wanted.items() if id not in known_lines], gates)


def wake(ledger: Ledger, ids: Iterable[UUID]) -> frozenset[str]:
    """Jobs have become ready in these lines. Which queues have work now that they did not have before."""
    return _open(ledger, [line for line in ledger.lines(ids).values() if line.state is not LineState.OPEN], {})


def leave(ledger: Ledger, departures: Sequence[Departure], now: int) -> frozenset[str]:
    """Jobs have left. Which queues have work now that they did not have before."""
    lines = ledger.lines({each.line for each in departures})
    gates = ledger.gates({id for line in lines.values() for id in line.gates})
    after = dict(gates)
    for each in departures:
        for id in lines[each.line].gates if each.line in lines else ():
            gate = after[id]
            is_over = each.is_over and not (each.is_dead and gate.is_blocking)
            after[id] = vacated(gate, each.job, was_active=each.was_active, is_over=is_over)
    changed = {id: gate for id, gate in after.items() if gate != gates[id]}
    ledger.save([], changed.values())
    return release(ledger, changed, now)


def ripen(ledger: Ledger, gates: Mapping[UUID, Gate], now: int) -> frozenset[str]:
    """The time of these gates has come. Which queues have work now."""
    after = {id: replace(gate, next_at=opens_at(gate, now)) for id, gate in gates.items()}
    ledger.save([], after.values())
    return release(ledger, after, now)


def release(ledger: Ledger, gates: Mapping[UUID, Gate], now: int) -> frozenset[str]:
    """Open what is parked at these gates, as far as they have room. Which queues have work now."""
    wanted = {id: number for id, gate in gates.items() if (number := to_open(gate, now)) > 0}
    return _open(ledger, ledger.parked(wanted), gates) if wanted else frozenset()


def claim(
    ledger: Ledger, queue: str, priority: int, slots: int, now: int, *, most_rated: int | None = None
) -> list[UUID]:
    """Take ready jobs from the lines of one queue and priority, at most so many, in the order to start in."""
    jobs: list[UUID] = []
    while len(jobs) < slots:
        lines = ledger.open_lines(queue, priority, slots - len(jobs))
        gates = ledger.gates({id for line in lines for id in line.gates})
        ready = ledger.ready([line.id for line in lines], slots - len(jobs))
        allotted = allot(lines, gates, ready, slots - len(jobs), now, most_rated=most_rated)
        if not allotted.lines:
            break
        ledger.save(allotted.lines, [gate for id, gate in allotted.gates.items() if gate != gates[id]])
        # What was opened for a gate's sake may have made no use of it: then it is the turn of others that are parked.
        release(ledger, allotted.gates, now)
        jobs += allotted.jobs
        if most_rated is not None:
            most_rated -= allotted.rated
    return jobs


def _open(ledger: Ledger, lines: Sequence[Line], gates: Mapping[UUID, Gate]) -> frozenset[str]:
    if not lines:
        return frozenset()
    known = {**ledger.gates({id for line in lines for id in line.gates} - gates.keys()), **gates}
    current = ledger.current_turns({(line.queue, line.priority) for line in lines})
    opening: list[Line] = []
    moved: dict[UUID, Gate] = {}
    for line in sorted(lines, key=lambda line: line.turn):
        line, tenant = opened(line, known, current.get((line.queue, line.priority), 0))
        opening.append(line)
        if tenant is not None:
            known[tenant.id] = moved[tenant.id] = tenant
    ledger.save(opening, moved.values())
    return frozenset(line.queue for line in opening)


def lines_share(slots: int, plain: int, lined: int, coin: bool) -> int:
    """How many of the slots go to jobs in lines, if so many of each kind could be claimed: half, unless some are left.

    `coin` decides about the odd one.
    """
    half = (slots + coin) // 2
    return min(lined, max(half, slots - plain))
