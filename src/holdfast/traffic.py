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

from holdfast.gates import Gate, GateRule, LineRule, declared, made, opens_at, to_open, vacated
from holdfast.job import FINAL, JobRecord, Stage
from holdfast.turns import Line, LineState, allot, line_of, lines_share, opened, quotas_for

_FEWEST_LINES: Final = 8
"""A claim looks at so many lines at least, if there are as many; for more slots at an eighth of them."""
Result = TypeVar("Result")
Entry = TypeVar("Entry")


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
        quotas = quotas_for(lines, gates, slots - len(jobs))
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
