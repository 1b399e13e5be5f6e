"""Lines and gates in dictionaries: what the memory store keeps of traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from holdfast import traffic
from holdfast.gates import MOST_PASSED_OVER, Gate, is_full, is_idle, must_start_at_once
from holdfast.traffic import at_once
from holdfast.turns import Line, LineState


class MemoryLedger:
    """`ready_in` gives the ready jobs of a line, the next one first; `ready_where` the line of a job that is ready."""

    def __init__(self, ready_in: Callable[[UUID], Sequence[UUID]], ready_where: Callable[[UUID], UUID | None]) -> None:
        self._ready_in = ready_in
        self._ready_where = ready_where
        self._lines: dict[UUID, Line] = {}
        self._ranks: dict[UUID, int] = {}
        """In which order lines were made."""
        self._gates: dict[UUID, Gate] = {}
        self._reached: dict[str, int] = {}

    async def lines(self, ids: Iterable[UUID]) -> dict[UUID, Line]:
        return {id: self._lines[id] for id in ids if id in self._lines}

    async def ways(self, lines: Iterable[UUID]) -> dict[UUID, tuple[UUID, ...]]:
        return {id: self._lines[id].gates for id in lines if id in self._lines}

    async def gates(self, ids: Iterable[UUID]) -> dict[UUID, Gate]:
        return {id: self._gates[id] for id in ids if id in self._gates}

    async def full(self, gates: Iterable[UUID]) -> set[UUID]:
        return {id for id, gate in (await self.gates(gates)).items() if is_full(gate)}

    async def open_lines(self, queue: str, priority: int, most: int, *, is_unrated: bool) -> list[Line]:
        mine = [line for line in self._open() if line.queue == queue and line.priority == priority]
        mine.sort(key=lambda line: (line.turn, self.rank(line.id)))
        if is_unrated:
            mine = [line for line in mine[:MOST_PASSED_OVER] if not self._must_start_at_once(line)]
        return mine[:most]

    def _must_start_at_once(self, line: Line) -> bool:
        return any(must_start_at_once(self._gates[id]) for id in line.gates)

    def rank(self, line: UUID) -> int:
        return self._ranks[line]

    async def open_priorities(self, queue: str) -> set[int]:
        return {line.priority for line in self._open() if line.queue == queue}

    async def parked(self, wanted: Mapping[UUID, int]) -> list[Line]:
        there: dict[tuple[UUID, str], list[Line]] = {}
        for line in self._lines.values():
            if line.parked_at is not None and line.parked_at in wanted:
                there.setdefault((line.parked_at, line.queue), []).append(line)
        return [
            line
            for (gate, _), lines in there.items()
            for line in sorted(lines, key=lambda line: (-line.priority, line.turn, self.rank(line.id)))[: wanted[gate]]
        ]

    async def current_turns(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        turns: dict[tuple[str, int], int] = {}
        wanted = set(places)
        for line in self._open():
            place = line.queue, line.priority
            if place in wanted:
                turns[place] = min(line.turn, turns.get(place, line.turn))
        return turns

    async def reached(self, queues: Iterable[str]) -> dict[str, int]:
        return {queue: self._reached[queue] for queue in queues if queue in self._reached}

    async def reach(self, queue: str, turn: int) -> None:
        self._reached[queue] = max(turn, self._reached.get(queue, 0))

    async def ready(self, wanted: Mapping[UUID, int]) -> dict[UUID, list[UUID]]:
        return {id: list(self._ready_in(id)[:most]) for id, most in wanted.items()}

    async def lines_of_ready(self, jobs: Sequence[UUID]) -> dict[UUID, UUID]:
        return {job: line for job in jobs if (line := self._ready_where(job)) is not None}

    def due_gates(self, now: int) -> dict[UUID, Gate]:
        return {id: gate for id, gate in self._gates.items() if gate.next_at is not None and gate.next_at <= now}

    def next_at(self) -> int | None:
        return min((gate.next_at for gate in self._gates.values() if gate.next_at is not None), default=None)

    async def save(self, lines: Iterable[Line], gates: Iterable[Gate]) -> None:
        for line in lines:
            self._lines[line.id] = line
            if line.id not in self._ranks:
                self._ranks[line.id] = max(self._ranks.values(), default=0) + 1
        self._gates |= {gate.id: gate for gate in gates}

    def forget(self, known: set[UUID], now: int) -> None:
        """Forget lines that are closed and in which no job stood that is known, and gates that nobody needs."""
        lines = [line for line in self._lines.values() if line.state is LineState.CLOSED and line.id not in known]
        at_once(traffic.forget(self, lines))
        for line in lines:
            del self._lines[line.id], self._ranks[line.id]
        self._gates = {id: gate for id, gate in self._gates.items() if not is_idle(gate, now)}

    def ahead(self, queue: str, priority: int, line: Line | None) -> int:
        """How many lines with ready jobs have their turn before this one; without one, before what is beside lines."""
        mine = [each for each in self._open() if each.queue == queue and self._ready_in(each.id)]
        if line is None:
            return sum(each.priority > priority for each in mine)
        place = -line.priority, line.turn, self.rank(line.id)
        return sum((-each.priority, each.turn, self.rank(each.id)) < place for each in mine if each.id != line.id)

    def all_gates(self) -> list[Gate]:
        return list(self._gates.values())

    def all_lines(self) -> list[Line]:
        return list(self._lines.values())

    def _open(self) -> list[Line]:
        return [line for line in self._lines.values() if line.state is LineState.OPEN]
