"""Turns: jobs that are under the very same limits stand in one line, and the lines of a queue take turns.

    job ──▶ line (queue, priority, its gates) ──▶ gates: limit, rate, order, fair

So a million jobs behind one key are one thing to pass over, not a million. A line is *open* while it may have
something to claim. If a gate has no room it is *parked* there, and is opened again when the gate has room, in the
order of turns. What happens to lines is in traffic.py.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Final, Generic
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.gates import (
    Gate,
    GateKind,
    Key,
    LineRule,
    is_held,
    longest_train,
    must_start_at_once,
    opens_at,
    places,
    room,
    taken,
)

_RATE: Final = GateKind.RATE
_FAIR: Final = GateKind.FAIR
_ORDER: Final = GateKind.ORDER
"""Looked up here, since a member of an enumeration takes long to look up where there are many gates."""


class LineState(IntEnum):
    CLOSED = 0
    """Nothing is ready in it, as far as anybody knows."""
    OPEN = 1
    """There may be something to claim."""
    PARKED = 2
    """One of its gates has no room."""


class Line(msgspec.Struct, Generic[Key], frozen=True, array_like=True):
    """A line as the store keeps it."""

    id: Key
    queue: str
    priority: int
    gates: tuple[Key, ...]
    state: LineState = LineState.CLOSED
    parked_at: Key | None = None
    """The gate that it waits for."""
    turn: int = 0
    """Among the open lines of one queue and priority, the lowest is next."""
    tenant: Key | None = None
    """That of its gates which gives turns to all lines of a tenant."""


def line_of(rule: LineRule, queue: str, priority: int) -> Line[UUID]:
    gates = rule.gates_in(queue)
    tenant = next((gate.id for gate in gates if gate.kind is GateKind.FAIR), None)
    return Line(rule.id_for(queue, priority), queue, priority, tuple(gate.id for gate in gates), tenant=tenant)


def at_priority(line: Line[Key], priority: int) -> Line[Key]:
    """The line at another priority, where it has no turn yet."""
    return Line(line.id, line.queue, priority, line.gates, tenant=line.tenant)


def moved(line: Line[Key], state: LineState, turn: int, parked_at: Key | None = None) -> Line[Key]:
    # There are so many of them that `replace` would take long.
    return Line(line.id, line.queue, line.priority, line.gates, state, parked_at, turn, line.tenant)


def opened(line: Line[Key], gates: Mapping[Key, Gate[Key]], current: int) -> tuple[Line[Key], Gate[Key] | None]:
    """The line with a turn, and its tenant's gate if that has moved on. `current` is whose turn it is.

    Who comes new, or was away, begins with those whose turn it is: what he did not use is not made up for. A turn that
    was given and not used is still good. The lines of one tenant get turns one after the other, so that many lines get
    no more than one.
    """
    tenant = None if line.tenant is None else gates[line.tenant]
    if line.turn >= max(current, 1):
        turn = line.turn
    else:
        turn = current if tenant is None else max(current, tenant.turn + 1)
    has_moved_on = tenant is not None and tenant.turn < turn
    return moved(line, LineState.OPEN, turn), replace(tenant, turn=turn) if tenant and has_moved_on else None


class Bounds(msgspec.Struct, frozen=True):
    """How many jobs a claim takes."""

    slots: int
    most_rated: int | None = None
    """Of those under a rate with a short window: they have to start when they are claimed."""
    most_behind: int = 0
    """Beyond the slots: of those that have to wait for another one of their order. See `trains_of`."""

    def without(self, jobs: int, rated: int, behind: int) -> Bounds:
        """When so many have been taken. Those `behind` others need no slot."""
        rated_left = None if self.most_rated is None else self.most_rated - rated
        return Bounds(self.slots - (jobs - behind), rated_left, self.most_behind - behind)


class Allotted(msgspec.Struct, Generic[Key], frozen=True):
    """What a claim takes from lines, and what they and their gates are like afterwards."""

    jobs: list[Key]
    """In the order to start in."""
    rated: int
    """How many of them are under a rate with a short window."""
    lines: list[Line[Key]]
    """Those that have changed."""
    gates: dict[Key, Gate[Key]]
    """All of them."""
    given: dict[Key, int]
    """How many of the jobs come from each line."""
    behind: dict[Key, Key]
    """Of jobs that are not the first of their train: the one before each."""
    reached: int
    """Where turns have come to: the highest of those lines that have given something."""
    has_passed_over: bool
    """Some could give more, but only of what has to start at once, and there are no slots for that."""


def allot(
    lines: Sequence[Line[Key]],
    gates: Mapping[Key, Gate[Key]],
    ready: Mapping[Key, Sequence[Key]],
    bounds: Bounds,
    now: int,
    *,
    quotas: Mapping[Key, int],
) -> Allotted[Key]:
    """Who gets the free slots of one queue: decided job by job, by priority, in the order of turns, through every gate.

    `ready` are the jobs of each line, the next one first; if there are as many as its quota, there may be more.
    """
    # By number, since looking up UUIDs takes long.
    after = list(gates.values())
    numbers = {id: number for number, id in enumerate(gates)}
    ways = [[numbers[id] for id in line.gates] for line in lines]
    kinds = [gate.kind for gate in after]
    trains = trains_of(lines, gates)
    orders = {number: trains[line.id] for number, line in enumerate(lines) if line.id in trains}
    """Of lines that lead to an order: how many jobs they may give."""
    order_at = {number: next(gate for gate in ways[number] if kinds[gate] is _ORDER) for number in orders}
    behind: dict[Key, Key] = {}
    rooms = [room(gate, now) for gate in after]
    timed = {number for number, kind in enumerate(kinds) if kind is _RATE}
    rates = {number for number in timed if must_start_at_once(after[number])}
    tenants = {number for number, kind in enumerate(kinds) if kind is _FAIR}
    through: list[list[Key]] = [[] for _ in after]
    found = [ready[line.id] for line in lines]
    gone = [0] * len(lines)
    turns = [line.turn for line in lines]
    states: dict[int, tuple[LineState, int | None]] = {}
    """Of those that have changed: what they are now, and which gate they wait for."""
    rated = 0
    has_passed_over = False
    jobs: list[Key] = []
    heap = [(-line.priority, line.turn, number) for number, line in enumerate(lines)]
    heapq.heapify(heap)
    while heap and len(jobs) - len(behind) < bounds.slots:
        rank, turn, number = heap[0]
        way, mine = ways[number], found[number]
        is_empty = gone[number] >= len(mine)
        blocking = None
        for gate in way:
            # If it is empty, there may be others behind the one that holds the order.
            if rooms[gate] <= 0 if not is_empty else _is_held(after[gate], through[gate]):
                blocking = gate
                break
        if blocking is None and is_empty and len(mine) >= quotas[lines[number].id]:
            heapq.heappop(heap)  # there may be more, but others come first
            continue
        if blocking is not None or is_empty:
            states[number] = (LineState.CLOSED if blocking is None else LineState.PARKED), blocking
            heapq.heappop(heap)
            continue
        if rates and not rates.isdisjoint(way):
            if bounds.most_rated is not None and rated >= bounds.most_rated:
                has_passed_over = True
                heapq.heappop(heap)
                continue
            rated += 1
        if number in orders:
            train = mine[: min(orders[number], quotas[lines[number].id], 1 + bounds.most_behind - len(behind))]
            behind.update(pairwise(reversed(train)))
        else:
            train = [mine[gone[number]]]
        gone[number] += len(train)
        jobs += train
        turn += len(train)
        for gate in way:
            rooms[gate] -= len(train)
            through[gate] += train
            if gate in tenants:
                turn = max(turn, after[gate].turn + len(train))
                after[gate] = replace(after[gate], turn=turn)
        turns[number] = turn
        if number in orders:
            # It has its order until all of these are over. The others of the line wait for that, if there are any.
            is_empty = gone[number] == len(mine) < quotas[lines[number].id]
            states[number] = (LineState.CLOSED, None) if is_empty else (LineState.PARKED, order_at[number])
            heapq.heappop(heap)
        else:
            states[number] = LineState.OPEN, None
            heapq.heapreplace(heap, (rank, turn, number))
    for number, passed in enumerate(through):
        if passed:
            after[number] = taken(after[number], passed, now)
            # Others may be parked there since before it last had room: they are opened when it has some again.
            if number in timed and (opening := opens_at(after[number], now)) is not None:
                after[number] = replace(after[number], next_at=opening)
    changed: list[Line[Key]] = []
    for number, (state, blocking) in states.items():
        parked_at = None
        if blocking is not None:
            full = after[blocking]
            parked_at = full.id
            if blocking in timed and (opening := opens_at(full, now)) != full.next_at:
                after[blocking] = replace(full, next_at=opening)
        changed.append(moved(lines[number], state, turns[number], parked_at))
    given = {line.id: number for line, number in zip(lines, gone, strict=True) if number}
    reached = max((turn for turn, number in zip(turns, gone, strict=True) if number), default=0)
    found_gates = dict(zip(gates, after, strict=True))
    return Allotted(jobs, rated, changed, found_gates, given, behind, reached, has_passed_over)


def _is_held(gate: Gate[Key], through: Sequence[Key]) -> bool:
    """Of an order: whether somebody has it, or has just got it."""
    return gate.kind is _ORDER and (is_held(gate) or bool(through))


def trains_of(lines: Sequence[Line[Key]], gates: Mapping[Key, Gate[Key]]) -> dict[Key, int]:
    """Of lines that lead to an order: how many of their jobs may be claimed together.

    Nobody else could run those behind the first one meanwhile, so one worker may have them in hand, and run each when
    the one before it has come to its end. If they needed a place at another gate, they would keep that from others; and
    if their tenant has several lines, it would have a whole train for each when others have one job.
    """
    found: dict[Key, int] = {}
    if any(gate.kind is _ORDER for gate in gates.values()):
        for line in lines:
            way = [gates[id] for id in line.gates]
            for gate in way:
                if gate.kind is _ORDER:
                    is_alone = all(other is gate or (other.kind is _FAIR and other.lines == 1) for other in way)
                    found[line.id] = longest_train(gate) if is_alone else places(gate)
    return found


def in_trains(jobs: Iterable[tuple[UUID, Hashable]]) -> dict[UUID, UUID]:
    """Jobs that were claimed together, in their order, with their lines if these lead to orders: who is behind whom.

    For claims whose answer was lost.
    """
    last: dict[Hashable, UUID] = {}
    behind: dict[UUID, UUID] = {}
    for job, line in jobs:
        if line is not None:
            if line in last:
                behind[job] = last[line]
            last[line] = job
    return behind


def quotas_for(lines: Sequence[Line[Key]], gates: Mapping[Key, Gate[Key]], bounds: Bounds) -> dict[Key, int]:
    """How many jobs of each line to look at: enough for twice its part, if every tenant gets the same.

    No more than one beyond what its limits let through: that one is for seeing that they let through no more. Of an
    order, a train, and nobody need look whether there are more behind it.
    """
    sizes = Counter(line.tenant for line in lines if line.tenant is not None)
    parties = len(sizes) + sum(line.tenant is None for line in lines)
    rooms = {id: 1 + places(gate) for id, gate in gates.items() if gate.kind is GateKind.LIMIT}
    trains = trains_of(lines, gates)
    longest = 1 - (-bounds.most_behind // max(1, len(trains)))
    quotas: dict[Key, int] = {}
    for line in lines:
        part = -(-2 * bounds.slots // (parties if line.tenant is None else parties * sizes[line.tenant]))
        for id in line.gates if rooms else ():
            if id in rooms:
                part = min(part, rooms[id])
        if line.id in trains:
            quotas[line.id] = max(1, min(trains[line.id], longest))
            continue
        # Powers of two, since those with the same quota are looked up together.
        quotas[line.id] = min(bounds.slots, 1 << (part - 1).bit_length())
    return quotas


def lines_share(slots: int, plain: int, coin: bool) -> int:
    """How many of the slots go to lines, if so many jobs beside them could have them: half, and what these leave.

    `coin` decides about the odd one.
    """
    return min(slots, max((slots + coin) // 2, slots - plain))
