"""Traffic: what happens to lines, and to the gates that they lead through, wherever a store keeps them.

What has ready jobs is always open, or parked at a gate without room. Whose turn it is, is decided in turns.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.gates import (
    Gate,
    GateKind,
    GateRule,
    Key,
    LineRule,
    declared,
    is_held,
    made,
    opens_at,
    to_open,
    unused,
    vacated,
)
from holdfast.job import FINAL, JobRecord, Stage
from holdfast.moment import to_microseconds
from holdfast.turns import (
    Bounds,
    Line,
    LineState,
    allot,
    at_priority,
    line_of,
    lines_share,
    moved,
    opened,
    quotas_for,
)

_FEWEST_LINES: Final = 8
"""A claim looks at so many lines at least, if there are as many; for more slots at an eighth of them."""
_FEWEST_ORDERS: Final = 128
"""Of orders it looks at so many: whoever runs them waits for each job's settlement before the next one of the same."""
_MOST_LINES: Final = 500
"""A claim looks at so many lines, or as many as it has slots, and no more. The next one goes on from there."""
Result = TypeVar("Result")
Entry = TypeVar("Entry")
Lined = TypeVar("Lined")
"""By what jobs in lines are known."""


class Ledger(Protocol[Key]):
    """Where a store keeps lines and gates, within one transaction. One that never waits is used with `at_once`."""

    async def lines(self, ids: Iterable[Key]) -> dict[Key, Line[Key]]: ...

    async def ways(self, lines: Iterable[Key]) -> dict[Key, tuple[Key, ...]]:
        """Through which gates these lines lead, which never changes."""
        ...

    async def gates(self, ids: Iterable[Key]) -> dict[Key, Gate[Key]]: ...

    async def full(self, gates: Iterable[Key]) -> set[Key]:
        """Which of these gates are known to be full, so that whoever leaves one opens what is parked there."""
        ...

    def rank(self, line: Key) -> int:
        """Which of several lines with the same turn is the next: the lowest."""
        ...

    async def open_priorities(self, queue: str) -> set[int]:
        """The priorities at which a queue has open lines."""
        ...

    async def open_lines(self, queue: str, priority: int, most: int, *, is_unrated: bool) -> list[Line[Key]]:
        """Those whose turn is next. `is_unrated`: of the first MOST_PASSED_OVER those that lead to no short rate."""
        ...

    async def parked(self, wanted: Mapping[Key, int]) -> list[Line[Key]]:
        """At each gate, so many of those of each queue that are parked there: by priority, then by turn."""
        ...

    async def current_turns(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The lowest turn of the open lines of each queue and priority; nothing where there is none."""
        ...

    async def reached(self, queues: Iterable[str]) -> dict[str, int]:
        """Where turns have come to in these queues, for when no line is open: nobody has had a higher one."""
        ...

    async def reach(self, queue: str, turn: int) -> None:
        """They have come to this one. If others tell of theirs at the same time, it may not be heard."""
        ...

    async def ready(self, wanted: Mapping[Key, int]) -> dict[Key, list[Key]]:
        """The ready jobs of each line, the next one first, at most so many of each."""
        ...

    async def lines_of_ready(self, jobs: Sequence[Key]) -> dict[Key, Key]:
        """In which lines those of these jobs stand that are ready."""
        ...

    async def save(self, lines: Iterable[Line[Key]], gates: Iterable[Gate[Key]]) -> None: ...


def at_once(decision: Coroutine[Any, Any, Result]) -> Result:
    """Come to a decision with a ledger that answers without waiting for anything: no event loop is needed for that."""
    try:
        decision.send(None)
    except StopIteration as end:
        return cast("Result", end.value)
    decision.close()
    raise RuntimeError("This ledger waits for its answers. Await the decision instead.")


class Departure(msgspec.Struct, Generic[Key], frozen=True):
    """A job that is not in a worker's hands any more, or has come to its end."""

    job: Key
    line: Key
    was_active: bool
    is_over: bool
    """It will not run again, unless somebody wants it to."""
    is_dead: bool = False
    """It blocks an order that says so: it is dead, and something of it may have been done."""
    waits: bool = False
    """It will run again, later."""
    unstarted_at: int | None = None
    """When it was claimed, if its task was not begun."""


def departure(before: JobRecord, after: JobRecord, *, is_unstarted: bool = False) -> Departure[UUID] | None:
    """What a change of a job means for its line. `is_unstarted`: it was claimed, and its task was not begun."""
    was_active = before.stage is Stage.ACTIVE and after.stage is not Stage.ACTIVE
    is_over = after.stage in FINAL and before.stage not in FINAL
    if after.line is None or not (was_active or is_over):
        return None
    claimed_at = before.started_at if is_unstarted and was_active else None
    return Departure(
        after.id,
        after.line,
        was_active,
        is_over,
        after.stage is Stage.DEAD and after.runs > 0,
        after.stage is Stage.SCHEDULED,
        None if claimed_at is None else to_microseconds(claimed_at),
    )


async def enter(ledger: Ledger[UUID], rules: Iterable[tuple[LineRule, str, int]]) -> None:
    """Jobs under these rules, in these queues with these priorities, are coming in."""
    wanted = {rule.id_for(queue, priority): (rule, queue, priority) for rule, queue, priority in rules}
    if not wanted:
        return
    known = await ledger.lines(wanted)
    others = {id: priority for id, (_, _, priority) in wanted.items() if id in known and known[id].priority != priority}
    fresh = [line_of(*each) for id, each in wanted.items() if id not in known]
    named = {gate.id: gate for rule, queue, _ in wanted.values() for gate in rule.gates_in(queue)}
    before = await ledger.gates(named)
    after = {id: declared(before[id], rule) if id in before else made(rule) for id, rule in named.items()}
    for line in fresh:
        for id in line.gates:
            after[id] = replace(after[id], lines=after[id].lines + 1)
    await ledger.save(fresh, [gate for id, gate in after.items() if before.get(id) != gate])
    await advance(ledger, others)


async def advance(ledger: Ledger[Key], priorities: Mapping[Key, int]) -> frozenset[str]:
    """Lines of orders go on at other priorities, those of the jobs that came last. Which queues have work there now.

    The jobs of a line keep their order. If it had a turn, it gets one among those where it is now.
    """
    lines = await ledger.lines(priorities)
    moved = {id: at_priority(line, priorities[id]) for id, line in lines.items()}
    await ledger.save(moved.values(), [])
    return await _open(ledger, [moved[id] for id in lines if lines[id].state is not LineState.CLOSED], {})


async def wake(ledger: Ledger[Key], ids: Iterable[Key]) -> frozenset[str]:
    """Jobs have become ready in these lines. Which queues have work now that they did not have before.

    What is parked at a full gate stays there: it would be looked at, and parked again, for every job that comes in.
    """
    lines = [line for line in (await ledger.lines(ids)).values() if line.state is not LineState.OPEN]
    parked = {line.parked_at for line in lines if line.parked_at is not None}
    full = await ledger.full(parked) if parked else set()
    return await _open(ledger, [line for line in lines if line.parked_at not in full], {})


async def leave(ledger: Ledger[Key], departures: Sequence[Departure[Key]], now: int) -> frozenset[str]:
    """Jobs have left. Which queues have work now that they did not have before."""
    ways = await ledger.ways({each.line for each in departures})
    gates = await ledger.gates({id for way in ways.values() for id in way})
    changed: dict[Key, Gate[Key]] = {}
    given_back: dict[Key, Key] = {}
    """Gates of jobs that will run again at once, and the lines of these."""
    for each in departures:
        for id in ways.get(each.line, ()):
            before = changed.get(id) or gates.get(id)
            if before is None:
                continue  # both have been forgotten since
            is_blocked = each.is_dead and before.is_blocking
            after = vacated(
                before,
                each.job,
                was_active=each.was_active,
                is_over=each.is_over and not is_blocked,
                waits=each.waits or (is_blocked and each.was_active),
            )
            if each.unstarted_at is not None:
                after = unused(after, each.unstarted_at)
            if after is not before:
                changed[id] = after
                if not (each.is_over or each.waits):
                    given_back[id] = each.line
    for id, line in given_back.items():
        if changed[id].kind is GateKind.ORDER and not is_held(changed[id]):
            # Of a train that was broken off: the first one has begun, perhaps, and nobody may come before it.
            jobs = (await ledger.ready({line: 1}))[line]
            changed[id] = replace(changed[id], holder=jobs[0] if jobs else None)
    await ledger.save([], changed.values())
    return await _let_holders_in(ledger, changed, departures) | await release(ledger, changed, now)


async def _let_holders_in(
    ledger: Ledger[Key], gates: Mapping[Key, Gate[Key]], departures: Sequence[Departure[Key]]
) -> frozenset[str]:
    """The last of a train that was broken off has left: who has the order may have come back before it, and be parked.

    Nobody knows in which line it stands, so all lines of its order may try. Which queues have work now.
    """
    gone = {each.job for each in departures}
    wanted = {
        id: gate.lines
        for id, gate in gates.items()
        if gate.kind is GateKind.ORDER and not gate.held and gate.holder is not None and gate.holder not in gone
    }
    return await _open(ledger, await ledger.parked(wanted), gates) if wanted else frozenset()


async def ripen(ledger: Ledger[Key], gates: Mapping[Key, Gate[Key]], now: int) -> frozenset[str]:
    """The time of these gates has come. Which queues have work now."""
    after = {id: replace(gate, next_at=opens_at(gate, now)) for id, gate in gates.items()}
    await ledger.save([], after.values())
    return await release(ledger, after, now)


async def override(
    ledger: Ledger[UUID], rule: GateRule, most: int | None, now: int, *, makes: bool
) -> tuple[Gate[UUID] | None, frozenset[str]]:
    """Let so many through a gate, whatever the code says; None: as many as that says. It is made if there is none.

    The gate as it is then, or None if it may not be made; and which queues have work now that they did not have before.
    """
    before = (await ledger.gates([rule.id])).get(rule.id)
    if before is None and not makes:
        return None, frozenset()
    return await override_gate(ledger, before or made(rule), most, now)


async def override_gate(
    ledger: Ledger[Key], gate: Gate[Key], most: int | None, now: int
) -> tuple[Gate[Key], frozenset[str]]:
    """The same of a gate that is at hand."""
    after = replace(gate, override=most)
    return after, await ripen(ledger, {after.id: after}, now)


async def release(ledger: Ledger[Key], gates: Mapping[Key, Gate[Key]], now: int) -> frozenset[str]:
    """Open what is parked at these gates, as far as they have room. Which queues have work now.

    In each queue as many as there is room for, since nobody knows which of the queues somebody claims from: one may be
    paused, or have no worker. Who comes too late is parked again.
    """
    wanted = {id: number for id, gate in gates.items() if (number := to_open(gate, now)) > 0}
    return await _open(ledger, await ledger.parked(wanted), gates) if wanted else frozenset()


async def forget(ledger: Ledger[Key], lines: Sequence[Line[Key]]) -> None:
    """These lines are closed, and no job is known that stood in them."""
    gates = await ledger.gates({id for line in lines for id in line.gates})
    for line in lines:
        for id in line.gates:
            gates[id] = replace(gates[id], lines=gates[id].lines - 1)
    await ledger.save([], gates.values())


class Claimed(msgspec.Struct, Generic[Key], frozen=True):
    """What a claim has taken from lines."""

    jobs: list[Key]
    """In the order to start in."""
    rated: int
    """How many of them are under a rate with a short window."""
    queues: frozenset[str]
    """Those that have work now that they did not have before."""
    has_timed: bool = False
    """Whether lines wait for a time now: whoever ticks has to know."""
    behind: Mapping[Key, Key] = {}
    """Of jobs that are not the first of their train: the one before each."""
    has_orders: bool = False
    """Whether some of these lines lead to orders."""
    is_cut_short: bool = False
    """There are more lines than one claim looks at."""


async def claim(
    ledger: Ledger[Key],
    queue: str,
    priority: int,
    bounds: Bounds,
    time: Callable[[], int],
    *,
    is_broad: bool = False,
    is_ordered: bool = False,
) -> Claimed[Key]:
    """Take ready jobs from the lines of one queue and priority.

    `time` is asked when gates are at hand, for which the ledger may have had to wait: what passes a rate counts from
    then on. `is_broad`: look at as many lines as there are slots from the beginning, since each gives little.
    `is_ordered`: they are expected to lead to orders.
    """
    jobs: list[Key] = []
    behind: dict[Key, Key] = {}
    rated = 0
    queues: frozenset[str] = frozenset()
    given: Counter[Key] = Counter()
    has_timed = False
    has_orders = False
    is_cut_short = False
    has_passed_over = False
    # Turns are counted by jobs, so a line that gives several now is the later in turn: it is fair all the same, and
    # there is less to keep than if each gave one. If that does not fill the slots, others are asked too.
    breadth = bounds.slots if is_broad else max(_FEWEST_LINES, bounds.slots // _FEWEST_LINES)
    if is_ordered:
        breadth = max(breadth, _FEWEST_ORDERS)
    breadth = min(breadth, bounds.slots)
    looked_at = 0
    while (left := bounds.without(len(jobs), rated, len(behind))).slots > 0:
        if looked_at >= max(_MOST_LINES, bounds.slots):
            is_cut_short = True
            break
        is_unrated = has_passed_over and left.most_rated == 0
        lines = await ledger.open_lines(queue, priority, breadth, is_unrated=is_unrated)
        gates = await ledger.gates({id for line in lines for id in line.gates})
        if not lines:
            break
        looked_at += len(lines)
        now = time()
        quotas = quotas_for(lines, gates, left)
        ready = await _candidates(ledger, lines, gates, quotas, frozenset(jobs), given)
        allotted = allot(lines, gates, ready, left, now, quotas=quotas)
        has_passed_over |= allotted.has_passed_over
        if not allotted.lines:
            if allotted.has_passed_over and not is_unrated:
                continue  # those behind them may give something
            break
        await ledger.save(allotted.lines, [gate for id, gate in allotted.gates.items() if gate is not gates[id]])
        if allotted.jobs:
            await ledger.reach(queue, allotted.reached)
        # What was opened for a gate's sake may have made no use of it: then it is the turn of others that are parked.
        queues |= await release(ledger, allotted.gates, now)
        jobs += allotted.jobs
        behind |= allotted.behind
        given.update(allotted.given)
        rated += allotted.rated
        has_orders |= any(gate.kind is GateKind.ORDER for gate in gates.values())
        has_timed |= any(gate.next_at is not None for gate in allotted.gates.values())
        # As many as should fill the slots, and some more, if the next lines give as much as these.
        started = len(allotted.jobs) - len(allotted.behind)
        missing, came = left.slots - started, max(1, started)
        most = missing if 4 * started > len(lines) else _MOST_LINES
        breadth = min(max(_FEWEST_LINES, missing * len(lines) * 5 // (4 * came)), most)
    if is_cut_short:
        queues |= {queue}
    return Claimed(jobs, rated, queues, has_timed, behind, has_orders, is_cut_short)


@dataclass(frozen=True)
class Picked(Generic[Entry, Lined]):
    """What a claim takes from a queue with lines: jobs beside them as they were found, those in lines by their keys."""

    jobs: list[Entry | Lined]
    """In the order to start in."""
    rated: int
    """How many of them are under a rate with a short window."""
    queues: frozenset[str]
    """Those that have work now that they did not have before."""
    has_timed: bool
    """Whether lines wait for a time now: whoever ticks has to know."""
    behind: Mapping[Lined, Lined]
    """Of jobs that are not the first of their train: the one before each."""
    has_orders: bool
    """Whether some of the lines lead to orders."""
    is_cut_short: bool
    """There are more lines than one claim looks at."""


PlainJobs = Callable[[int, int, int], Awaitable[Sequence[Entry]]]
"""Ready jobs of a queue that stand in no line: from the lowest to the highest of these priorities, at most so many."""


async def pick(
    ledger: Ledger[Lined],
    plain_jobs: PlainJobs[Entry],
    queue: str,
    bounds: Bounds,
    time: Callable[[], int],
    *,
    coin: bool,
    is_broad: bool = False,
    is_ordered: bool = False,
) -> Picked[Entry, Lined]:
    """Take jobs from a queue that has open lines: by priority, and of the same priority some of either kind."""
    picked: list[Entry | Lined] = []
    behind: dict[Lined, Lined] = {}
    rated = 0
    queues: frozenset[str] = frozenset()
    has_timed = False
    has_orders = False
    is_cut_short = False
    highest = 9
    for priority in [*sorted(await ledger.open_priorities(queue), reverse=True), -1]:
        if priority < highest:
            picked += await plain_jobs(priority + 1, highest, bounds.slots - (len(picked) - len(behind)))
        left = bounds.slots - (len(picked) - len(behind))
        if priority < 0 or left <= 0:
            break
        plain = await plain_jobs(priority, priority, left)
        share = lines_share(left, len(plain), coin)
        its_bounds = replace(bounds.without(0, rated, len(behind)), slots=share)
        lined = await claim(ledger, queue, priority, its_bounds, time, is_broad=is_broad, is_ordered=is_ordered)
        rated += lined.rated
        behind |= lined.behind
        queues |= lined.queues
        has_timed |= lined.has_timed
        has_orders |= lined.has_orders
        is_cut_short |= lined.is_cut_short
        picked += [*lined.jobs, *plain[: max(0, left - (len(lined.jobs) - len(lined.behind)))]]
        highest = priority - 1
    return Picked(picked, rated, queues, has_timed, behind, has_orders, is_cut_short)


async def _candidates(
    ledger: Ledger[Key],
    lines: Sequence[Line[Key]],
    gates: Mapping[Key, Gate[Key]],
    quotas: Mapping[Key, int],
    taken: frozenset[Key],
    given: Mapping[Key, int],
) -> dict[Key, list[Key]]:
    """The jobs that each line could give, without those that were just taken, so many of each line.

    If its order is held, that is the holder, wherever it stands, or nobody.
    """
    held = {id: gate.holder for id, gate in gates.items() if gate.holder is not None}
    holders = {line.id: held[id] for line in lines for id in line.gates if id in held} if held else {}
    back = await ledger.lines_of_ready(list(set(holders.values()) - taken)) if holders else {}
    found = {line: [job] if back.get(job) == line else [] for line, job in holders.items()}
    wanted = {line.id: quotas[line.id] + given.get(line.id, 0) for line in lines if line.id not in holders}
    ready = await ledger.ready(wanted) if wanted else {}
    for id, jobs in ready.items():
        # Only lines that have given something can have those that were taken.
        found[id] = [job for job in jobs if job not in taken][: quotas[id]] if id in given else jobs
    return found


async def _open(ledger: Ledger[Key], lines: Sequence[Line[Key]], gates: Mapping[Key, Gate[Key]]) -> frozenset[str]:
    if not lines:
        return frozenset()
    tenants = {line.tenant for line in lines if line.tenant is not None}
    known = {**await ledger.gates(tenants - gates.keys()), **gates}
    places = {(line.queue, line.priority) for line in lines}
    current = await ledger.current_turns(places)
    reached = await ledger.reached({queue for queue, priority in places if (queue, priority) not in current})
    opening: list[Line[Key]] = []
    tenants_moved: dict[Key, Gate[Key]] = {}
    # Who is parked has waited all the time, and was there before those who come now.
    ordered = sorted(lines, key=lambda line: (line.state is LineState.CLOSED, line.turn, ledger.rank(line.id)))
    leads = _leads(ordered, current, reached)
    for line in ordered:
        place = line.queue, line.priority
        if line.state is LineState.PARKED:
            line = moved(line, LineState.PARKED, line.turn + leads.get(place, 0), line.parked_at)
        line, tenant = opened(line, known, current.get(place, reached.get(line.queue, 0)))
        current[place] = min(line.turn, current.get(place, line.turn))  # as if they were opened one after the other
        opening.append(line)
        if tenant is not None:
            known[tenant.id] = tenants_moved[tenant.id] = tenant
    await ledger.save(opening, tenants_moved.values())
    return frozenset(line.queue for line in opening)


def _leads(
    lines: Sequence[Line[Key]], current: Mapping[tuple[str, int], int], reached: Mapping[str, int]
) -> dict[tuple[str, int], int]:
    """By how much the turns of what is parked are behind, at places where no line is open.

    The lowest of them is next, and keeps its distance to the others. But turns don't go back: whoever had some
    meanwhile, alone, would have to wait until they have come to where he was.
    """
    found: dict[tuple[str, int], int] = {}
    for line in lines:
        place = line.queue, line.priority
        if line.state is LineState.PARKED and place not in current and place not in found:
            found[place] = max(0, reached.get(line.queue, 0) - line.turn)
    return found
