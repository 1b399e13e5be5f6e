"""Traffic: jobs that are under the very same limits stand in one line, and the line stands in the queue for them.

    job ──▶ line (queue, priority, its gates) ──▶ gates: limit, rate, order, fair

So a million jobs behind one key are one thing to pass over, not a million. A line is *open* while it may have
something to claim. If a gate has no room it is *parked* there, and is opened again when the gate has room, in the
order of turns. What has ready jobs is thus always open, or parked at a gate without room.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Generic, Protocol, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.gates import (
    Gate,
    GateKind,
    GateRule,
    LineRule,
    declared,
    is_held_on_to,
    made,
    must_start_at_once,
    opens_at,
    places,
    room,
    taken,
    to_open,
    vacated,
)
from holdfast.job import FINAL, JobRecord, Stage

_FEWEST_LINES: Final = 8
"""A claim looks at so many lines at least, if there are as many; for more slots at an eighth of them."""
Result = TypeVar("Result")
Entry = TypeVar("Entry")


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


# ── what happens to lines ────────────────────────────────────────────────────────────────────────────────────────────


def _is_held(gate: Gate, through: Sequence[UUID]) -> bool:
    """Of an order: whether somebody has it, or has just got it."""
    return gate.kind is GateKind.ORDER and (gate.holder is not None or bool(through))


class Ledger(Protocol):
    """Where a store keeps lines and gates, within one transaction. One that never waits is used with `at_once`."""

    async def lines(self, ids: Iterable[UUID]) -> dict[UUID, Line]: ...

    async def gates(self, ids: Iterable[UUID]) -> dict[UUID, Gate]: ...

    async def open_priorities(self, queue: str) -> set[int]:
        """The priorities at which a queue has open lines."""
        ...

    async def open_lines(self, queue: str, priority: int, most: int) -> list[Line]:
        """Those whose turn is next."""
        ...

    async def parked(self, wanted: Mapping[UUID, int]) -> list[Line]:
        """At each gate, so many of those that are parked there: by priority, then by turn."""
        ...

    async def current_turns(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The lowest turn of the open lines of each queue and priority; nothing where there is none."""
        ...

    async def ready(self, wanted: Mapping[UUID, int]) -> dict[UUID, list[UUID]]:
        """The ready jobs of each line, the next one first, at most so many of each."""
        ...

    async def lines_of_ready(self, jobs: Sequence[UUID]) -> dict[UUID, UUID]:
        """In which lines those of these jobs stand that are ready."""
        ...

    async def save(self, lines: Iterable[Line], gates: Iterable[Gate]) -> None: ...


def at_once(decision: Coroutine[Any, Any, Result]) -> Result:
    """Come to a decision with a ledger that answers without waiting for anything: no event loop is needed for that."""
    try:
        decision.send(None)
    except StopIteration as end:
        return cast("Result", end.value)
    decision.close()
    raise RuntimeError("This ledger waits for its answers. Await the decision instead.")


class Departure(msgspec.Struct, frozen=True):
    """A job that is not in a worker's hands any more, or has come to its end."""

    job: UUID
    line: UUID
    was_active: bool
    is_over: bool
    """It will not run again, unless somebody wants it to."""
    is_dead: bool = False


def departure(before: JobRecord, after: JobRecord) -> Departure | None:
    """What a change of a job means for its line."""
    was_active = before.stage is Stage.ACTIVE and after.stage is not Stage.ACTIVE
    is_over = after.stage in FINAL and before.stage not in FINAL
    if after.line is None or not (was_active or is_over):
        return None
    return Departure(after.id, after.line, was_active, is_over, after.stage is Stage.DEAD)


async def enter(ledger: Ledger, rules: Iterable[tuple[LineRule, str, int]]) -> None:
    """Jobs under these rules, in these queues with these priorities, are coming in."""
    wanted = {rule.id_for(queue, priority): (rule, queue, priority) for rule, queue, priority in rules}
    if not wanted:
        return
    known = await ledger.lines(wanted)
    fresh = [line_of(*each) for id, each in wanted.items() if id not in known]
    named = {gate.id: gate for rule, _, _ in wanted.values() for gate in rule.gates}
    before = await ledger.gates(named)
    after = {id: declared(before[id], rule) if id in before else made(rule) for id, rule in named.items()}
    for line in fresh:
        for id in line.gates:
            after[id] = replace(after[id], lines=after[id].lines + 1)
    await ledger.save(fresh, [gate for id, gate in after.items() if before.get(id) != gate])


async def wake(ledger: Ledger, ids: Iterable[UUID]) -> frozenset[str]:
    """Jobs have become ready in these lines. Which queues have work now that they did not have before."""
    lines = await ledger.lines(ids)
    return await _open(ledger, [line for line in lines.values() if line.state is not LineState.OPEN], {})


async def leave(ledger: Ledger, departures: Sequence[Departure], now: int) -> frozenset[str]:
    """Jobs have left. Which queues have work now that they did not have before."""
    lines = await ledger.lines({each.line for each in departures})
    gates = await ledger.gates({id for line in lines.values() for id in line.gates})
    after = dict(gates)
    for each in departures:
        for id in lines[each.line].gates if each.line in lines else ():
            gate = after[id]
            is_over = each.is_over and not (each.is_dead and gate.is_blocking)
            after[id] = vacated(gate, each.job, was_active=each.was_active, is_over=is_over)
    changed = {id: gate for id, gate in after.items() if gate != gates[id]}
    await ledger.save([], changed.values())
    return await release(ledger, changed, now)


async def ripen(ledger: Ledger, gates: Mapping[UUID, Gate], now: int) -> frozenset[str]:
    """The time of these gates has come. Which queues have work now."""
    after = {id: replace(gate, next_at=opens_at(gate, now)) for id, gate in gates.items()}
    await ledger.save([], after.values())
    return await release(ledger, after, now)


async def override(
    ledger: Ledger, rule: GateRule, most: int | None, now: int, *, makes: bool
) -> tuple[Gate | None, frozenset[str]]:
    """Let so many through a gate, whatever the code says; None: as many as that says. It is made if there is none.

    The gate as it is then, or None if it may not be made; and which queues have work now that they did not have before.
    """
    before = (await ledger.gates([rule.id])).get(rule.id)
    if before is None and not makes:
        return None, frozenset()
    after = replace(before or made(rule), override=most)
    return after, await ripen(ledger, {after.id: after}, now)


async def release(ledger: Ledger, gates: Mapping[UUID, Gate], now: int) -> frozenset[str]:
    """Open what is parked at these gates, as far as they have room. Which queues have work now."""
    wanted = {id: number for id, gate in gates.items() if (number := to_open(gate, now)) > 0}
    return await _open(ledger, await ledger.parked(wanted), gates) if wanted else frozenset()


async def forget(ledger: Ledger, lines: Sequence[Line]) -> None:
    """These lines are closed, and no job is known that stood in them."""
    gates = await ledger.gates({id for line in lines for id in line.gates})
    for line in lines:
        for id in line.gates:
            gates[id] = replace(gates[id], lines=gates[id].lines - 1)
    await ledger.save([], gates.values())


class Claimed(msgspec.Struct, frozen=True):
    """What a claim has taken from lines."""

    jobs: list[UUID]
    """In the order to start in."""
    rated: int
    """How many of them are under a rate with a short window."""
    queues: frozenset[str]
    """Those that have work now that they did not have before."""
    has_timed: bool = False
    """Whether lines wait for a time now: whoever ticks has to know."""


async def claim(
    ledger: Ledger,
    queue: str,
    priority: int,
    slots: int,
    now: int,
    *,
    most_rated: int | None = None,
    is_broad: bool = False,
) -> Claimed:
    """Take ready jobs from the lines of one queue and priority, at most so many; `most_rated` of those under a rate.

    `is_broad`: look at as many lines as there are slots from the beginning, since each gives little.
    """
    jobs: list[UUID] = []
    rated = 0
    queues: frozenset[str] = frozenset()
    given: Counter[UUID] = Counter()
    has_timed = False
    # Turns are counted by jobs, so a line that gives several now is the later in turn: it is fair all the same, and
    # there is less to keep than if each gave one. If that does not fill the slots, others are asked too.
    breadth = slots if is_broad else max(_FEWEST_LINES, slots // _FEWEST_LINES)
    while len(jobs) < slots:
        lines = await ledger.open_lines(queue, priority, min(slots - len(jobs), breadth))
        breadth = slots
        gates = await ledger.gates({id for line in lines for id in line.gates})
        if not lines:
            break
        quotas = _quotas(lines, gates, slots - len(jobs))
        ready = await _candidates(ledger, lines, gates, quotas, frozenset(jobs), given)
        rated_left = None if most_rated is None else most_rated - rated
        allotted = allot(lines, gates, ready, slots - len(jobs), now, quotas=quotas, most_rated=rated_left)
        if not allotted.lines:
            break
        await ledger.save(allotted.lines, [gate for id, gate in allotted.gates.items() if gate is not gates[id]])
        # What was opened for a gate's sake may have made no use of it: then it is the turn of others that are parked.
        queues |= await release(ledger, allotted.gates, now)
        jobs += allotted.jobs
        given.update(allotted.given)
        rated += allotted.rated
        has_timed |= any(gate.next_at is not None for gate in allotted.gates.values())
    return Claimed(jobs, rated, queues, has_timed)


@dataclass(frozen=True)
class Picked(Generic[Entry]):
    """What a claim takes from a queue with lines: jobs beside them as they were found, those in lines by their ids."""

    jobs: list[Entry | UUID]
    """In the order to start in."""
    rated: int
    """How many of them are under a rate with a short window."""
    queues: frozenset[str]
    """Those that have work now that they did not have before."""
    has_timed: bool
    """Whether lines wait for a time now: whoever ticks has to know."""


PlainJobs = Callable[[int, int, int], Awaitable[Sequence[Entry]]]
"""Ready jobs of a queue that stand in no line: from the lowest to the highest of these priorities, at most so many."""


async def pick(
    ledger: Ledger,
    plain_jobs: PlainJobs[Entry],
    queue: str,
    slots: int,
    now: int,
    *,
    coin: bool,
    most_rated: int | None,
    is_broad: bool = False,
) -> Picked[Entry]:
    """Take jobs from a queue that has open lines: by priority, and of the same priority some of either kind."""
    picked: list[Entry | UUID] = []
    rated = 0
    queues: frozenset[str] = frozenset()
    has_timed = False
    highest = 9
    for priority in [*sorted(await ledger.open_priorities(queue), reverse=True), -1]:
        if priority < highest:
            picked += await plain_jobs(priority + 1, highest, slots - len(picked))
        left = slots - len(picked)
        if priority < 0 or left <= 0:
            break
        plain = await plain_jobs(priority, priority, left)
        share = lines_share(left, len(plain), coin)
        rated_left = None if most_rated is None else most_rated - rated
        lined = await claim(ledger, queue, priority, share, now, most_rated=rated_left, is_broad=is_broad)
        rated += lined.rated
        queues |= lined.queues
        has_timed |= lined.has_timed
        picked += [*lined.jobs, *plain[: left - len(lined.jobs)]]
        highest = priority - 1
    return Picked(picked, rated, queues, has_timed)


def _quotas(lines: Sequence[Line], gates: Mapping[UUID, Gate], slots: int) -> dict[UUID, int]:
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


async def _candidates(
    ledger: Ledger,
    lines: Sequence[Line],
    gates: Mapping[UUID, Gate],
    quotas: Mapping[UUID, int],
    taken: frozenset[UUID],
    given: Mapping[UUID, int],
) -> dict[UUID, list[UUID]]:
    """The jobs that each line could give, without those that were just taken, so many of each line.

    If its order is held, that is the holder, wherever it stands, or nobody.
    """
    holders = {line.id: holder for line in lines for id in line.gates if (holder := gates[id].holder) is not None}
    back = await ledger.lines_of_ready(list(set(holders.values()) - taken)) if holders else {}
    found = {line: [job] if back.get(job) == line else [] for line, job in holders.items()}
    wanted = {line.id: quotas[line.id] + given.get(line.id, 0) for line in lines if line.id not in holders}
    ready = await ledger.ready(wanted) if wanted else {}
    for id, jobs in ready.items():
        found[id] = [job for job in jobs if job not in taken][: quotas[id]]
    return found


async def _open(ledger: Ledger, lines: Sequence[Line], gates: Mapping[UUID, Gate]) -> frozenset[str]:
    if not lines:
        return frozenset()
    tenants = {line.tenant for line in lines if line.tenant is not None}
    known = {**await ledger.gates(tenants - gates.keys()), **gates}
    current = await ledger.current_turns({(line.queue, line.priority) for line in lines})
    opening: list[Line] = []
    moved: dict[UUID, Gate] = {}
    for line in sorted(lines, key=lambda line: (line.turn, line.id)):
        place = line.queue, line.priority
        line, tenant = opened(line, known, current.get(place, 0))
        current[place] = min(line.turn, current.get(place, line.turn))  # as if they were opened one after the other
        opening.append(line)
        if tenant is not None:
            known[tenant.id] = moved[tenant.id] = tenant
    await ledger.save(opening, moved.values())
    return frozenset(line.queue for line in opening)


def lines_share(slots: int, plain: int, coin: bool) -> int:
    """How many of the slots go to lines, if so many jobs beside them could have them: half, and what these leave.

    `coin` decides about the odd one.
    """
    return min(slots, max((slots + coin) // 2, slots - plain))
