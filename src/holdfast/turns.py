"""Turns: jobs that are under the very same limits stand in one line, and the lines of a queue take turns.

    job ──▶ line (queue, priority, its gates) ──▶ gates: limit, rate, order, fair

So a million jobs behind one key are one thing to pass over, not a million. A line is *open* while it may have
something to claim. If a gate has no room it is *parked* there, and is opened again when the gate has room, in the
order of turns. What happens to lines is in traffic.py.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.gates import Gate, GateKind, LineRule, is_held_on_to, must_start_at_once, opens_at, places, room, taken


class LineState(IntEnum):
    CLOSED = 0
    """Nothing is ready in it, as far as anybody knows."""
    OPEN = 1
    """There may be something to claim."""
    PARKED = 2
    """One of its gates has no room."""


class Line(msgspec.Struct, frozen=True, array_like=True):
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
    tenant: UUID | None = None
    """That of its gates which gives turns to all lines of a tenant."""


def line_of(rule: LineRule, queue: str, priority: int) -> Line:
    fair = rule.of(GateKind.FAIR)
    gates = tuple(gate.id for gate in rule.gates)
    return Line(rule.id_for(queue, priority), queue, priority, gates, tenant=None if fair is None else fair.id)


def opened(line: Line, gates: Mapping[UUID, Gate], current: int) -> tuple[Line, Gate | None]:
    """The line with a turn, and its tenant's gate if that has moved on. `current` is the lowest turn of open lines.

    Who comes new, or was away, begins with those whose turn it is: what he did not use is not made up for. The lines
    of one tenant get turns one after the other, so that many lines get no more than one.
    """
    tenant = None if line.tenant is None else gates[line.tenant]
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
    """How many of them are under a rate with a short window."""
    lines: list[Line]
    """Those that have changed."""
    gates: dict[UUID, Gate]
    """All of them."""
    given: dict[UUID, int]
    """How many of the jobs come from each line."""


def allot(
    lines: Sequence[Line],
    gates: Mapping[UUID, Gate],
    ready: Mapping[UUID, Sequence[UUID]],
    slots: int,
    now: int,
    *,
    quotas: Mapping[UUID, int],
    most_rated: int | None = None,
) -> Allotted:
    """Who gets the free slots of one queue: decided job by job, by priority, in the order of turns, through every gate.

    `ready` are the jobs of each line, the next one first; if there are as many as its quota, there may be more.
    At most `most_rated` of those under a rate with a short window are taken: they have to start when they are claimed.
    """
    # By number, since looking up UUIDs takes long.
    after = list(gates.values())
    numbers = {id: number for number, id in enumerate(gates)}
    ways = [tuple(numbers[id] for id in line.gates) for line in lines]
    rooms = [room(gate, now) for gate in after]
    rates = {number for number, gate in enumerate(after) if must_start_at_once(gate)}
    tenants = {number for number, gate in enumerate(after) if gate.kind is GateKind.FAIR}
    through: list[list[UUID]] = [[] for _ in after]
    found = [ready[line.id] for line in lines]
    gone = [0] * len(lines)
    turns = [line.turn for line in lines]
    changed: dict[int, Line] = {}
    rated = 0
    jobs: list[UUID] = []
    heap = [(-line.priority, line.turn, number) for number, line in enumerate(lines)]
    heapq.heapify(heap)
    while heap and len(jobs) < slots:
        rank, turn, number = heapq.heappop(heap)
        line, way, mine = lines[number], ways[number], found[number]
        is_empty = gone[number] >= len(mine)
        if is_empty and len(mine) >= quotas[line.id]:
            continue  # there may be more, but others come first
        if not is_empty:
            blocking = next((gate for gate in way if rooms[gate] <= 0), None)
        else:  # there may be others behind the one that holds the order
            blocking = next((gate for gate in way if _is_held(after[gate], through[gate])), None)
        if blocking is not None:
            parked_at = after[blocking].id
            changed[number] = replace(line, state=LineState.PARKED, parked_at=parked_at, turn=turns[number])
            continue
        if is_empty:
            changed[number] = replace(line, state=LineState.CLOSED, turn=turns[number])
            continue
        is_rated = not rates.isdisjoint(way)
        if is_rated and most_rated is not None and rated >= most_rated:
            continue
        rated += is_rated
        job = mine[gone[number]]
        gone[number] += 1
        jobs.append(job)
        turn += 1
        for gate in way:
            rooms[gate] -= 1
            through[gate].append(job)
            if gate in tenants:
                turn = max(turn, after[gate].turn + 1)
                after[gate] = replace(after[gate], turn=turn)
        turns[number] = turn
        changed[number] = line
        heapq.heappush(heap, (rank, turn, number))
    after = [taken(gate, passed, now) for gate, passed in zip(after, through, strict=True)]
    for number, passed in enumerate(through):
        # Others may be parked there since before it last had room: they are opened when it has some again.
        if passed and (opening := opens_at(after[number], now)) is not None:
            after[number] = replace(after[number], next_at=opening)
    moved: list[Line] = []
    for number, line in changed.items():
        if line.state is LineState.PARKED and line.parked_at is not None:
            blocking = numbers[line.parked_at]
            after[blocking] = replace(after[blocking], next_at=opens_at(after[blocking], now))
        moved.append(line if line.turn == turns[number] else replace(line, turn=turns[number]))
    given = {line.id: number for line, number in zip(lines, gone, strict=True) if number}
    return Allotted(jobs, rated, moved, {gate.id: gate for gate in after}, given)


def _is_held(gate: Gate, through: Sequence[UUID]) -> bool:
    """Of an order: whether somebody has it, or has just got it."""
    return gate.kind is GateKind.ORDER and (gate.holder is not None or bool(through))


def quotas_for(lines: Sequence[Line], gates: Mapping[UUID, Gate], slots: int) -> dict[UUID, int]:
    """How many jobs of each line to look at: enough for twice its part, if every tenant gets the same.

    No more than one beyond what its gates let through: that one is for seeing that they let through no more.
    """
    tenants = {line.id: line.tenant or line.id for line in lines}
    sizes = Counter(tenants.values())
    parts = {line: -(-2 * slots // (len(sizes) * sizes[tenant])) for line, tenant in tenants.items()}
    for line in lines:
        rooms = [1 + places(gate) for id in line.gates if is_held_on_to(gate := gates[id])]
        parts[line.id] = min(parts[line.id], *rooms) if rooms else parts[line.id]
    # Powers of two, since those with the same quota are looked up together.
    return {line: min(slots, 1 << (part - 1).bit_length()) for line, part in parts.items()}


def lines_share(slots: int, plain: int, coin: bool) -> int:
    """How many of the slots go to lines, if so many jobs beside them could have them: half, and what these leave.

    `coin` decides about the odd one.
    """
    return min(slots, max((slots + coin) // 2, slots - plain))
