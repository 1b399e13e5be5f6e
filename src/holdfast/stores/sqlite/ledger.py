"""Lines and gates in the file, within one transaction. What was read is kept: nobody else writes meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast import traffic
from holdfast.gates import Gate, is_idle, is_same_rule
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.statements import chunks
from holdfast.traffic import at_once
from holdfast.turns import Line

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction


_WINDOW = 1000
_MOST_PARKED = 1000
"""Lines to open at once for one gate. If it has room for more, the next claim opens more."""


class SqliteLedger:
    """One transaction's lines and gates."""

    def __init__(self, transaction: Transaction) -> None:
        self._it = transaction
        self._lines: dict[UUID, Line] = {}
        self._gates: dict[UUID, Gate] = {}

    async def lines(self, ids: Iterable[UUID]) -> dict[UUID, Line]:
        wanted = set(ids)
        for chunk in chunks([id.bytes for id in wanted if id not in self._lines]):
            self._keep(rows.read_lines(self._it.answer("lines", chunk, len(chunk))))
        return {id: self._lines[id] for id in wanted if id in self._lines}

    async def gates(self, ids: Iterable[UUID]) -> dict[UUID, Gate]:
        wanted = set(ids)
        for chunk in chunks([id.bytes for id in wanted if id not in self._gates]):
            self._gates |= {gate.id: gate for gate in rows.read_gates(self._it.answer("gates", chunk, len(chunk)))}
        return {id: self._gates[id] for id in wanted if id in self._gates}

    async def open_lines(self, queue: str, priority: int, most: int) -> list[Line]:
        return self._keep(rows.read_lines(self._it.answer("open_lines", (queue, priority, most))))

    async def open_priorities(self, queue: str) -> set[int]:
        return {priority for (priority,) in self._it.execute("open_priorities", (queue,))}

    async def parked(self, wanted: Mapping[UUID, int]) -> list[Line]:
        found: list[Line] = []
        for most, gates in _by_number(wanted):
            for chunk in chunks(gates):
                some = min(most, _MOST_PARKED)
                found += rows.read_lines(self._it.answer("parked_lines", (some, *chunk), len(chunk)))
        return self._keep(found)

    async def current_turns(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        turns: dict[tuple[str, int], int] = {}
        for place in places:
            ((turn,),) = self._it.execute("current_turn", place)
            if turn is not None:
                turns[place] = turn
        return turns

    async def ready(self, wanted: Mapping[UUID, int]) -> dict[UUID, list[UUID]]:
        self._it.flush()
        found: dict[UUID, list[UUID]] = {id: [] for id in wanted}
        for most, lines in _by_number(wanted):
            for chunk in chunks(lines):
                text = self._it.answer("ready_in_lines", (self._it.microseconds, most, *chunk), len(chunk))
                for line, job in rows.read_pairs(text):
                    found[line].append(job)
        return found

    async def lines_of_ready(self, jobs: Sequence[UUID]) -> dict[UUID, UUID]:
        self._it.flush()
        found: dict[UUID, UUID] = {}
        for chunk in chunks([id.bytes for id in jobs]):
            text = self._it.answer("lines_of_ready", (self._it.microseconds, *chunk), len(chunk))
            found |= dict(rows.read_pairs(text))
        return found

    def due_gates(self, now: int, most: int) -> dict[UUID, Gate]:
        due = {gate.id: gate for gate in rows.read_gates(self._it.answer("due_gates", (now, most)))}
        self._gates |= due
        return due

    def next_at(self) -> int | None:
        ((opening,),) = self._it.execute("next_opening")
        return None if opening is None else int(opening)

    def forget(self, after: int) -> int:
        """Forget some lines and gates that nobody needs any more. Where to go on; 0 means from the beginning."""
        ((last, looked_at, text),) = self._it.execute("forgotten_lines", (after, _WINDOW))
        lines = rows.read_lines(text)
        at_once(traffic.forget(self, lines))
        self._it.change_many("forget_lines", [(line.id.bytes,) for line in lines])
        for line in lines:
            self._lines.pop(line.id, None)
        gates = rows.read_gates(self._it.answer("unused_gates", (_WINDOW,)))
        idle = [gate.id.bytes for gate in gates if is_idle(gate, self._it.microseconds)]
        self._it.change_many("forget_gates", [(id,) for id in idle])
        for id in idle:
            self._gates.pop(UUID(bytes=id), None)
        return int(last) if looked_at == _WINDOW else 0

    async def save(self, lines: Iterable[Line], gates: Iterable[Gate]) -> None:
        """Mostly little has changed, and only that is written."""
        moved = list(lines)
        fresh = [line for line in moved if line.id not in self._lines]
        if fresh:
            self._it.change_many("make_lines", [rows.line_row(line) for line in fresh])
            moved = [line for line in moved if line.id in self._lines]
            self._keep(fresh)
        self._it.change_many("save_lines", [rows.moved_line(line) for line in moved])
        self._keep(moved)
        whole: list[Gate] = []
        used: list[Gate] = []
        for gate in gates:
            before = self._gates.get(gate.id)
            (used if before is not None and is_same_rule(before, gate) else whole).append(gate)
            self._gates[gate.id] = gate
        self._it.change_many("make_gates", [rows.gate_row(gate) for gate in whole])
        self._it.change_many("save_gates", [rows.used_gate(gate) for gate in used])

    def _keep(self, lines: list[Line]) -> list[Line]:
        self._lines |= {line.id: line for line in lines}
        return lines


def _by_number(wanted: Mapping[UUID, int]) -> list[tuple[int, list[bytes]]]:
    """Those of which the same number is wanted are asked for together."""
    groups: dict[int, list[bytes]] = {}
    for id, number in wanted.items():
        groups.setdefault(number, []).append(id.bytes)
    return list(groups.items())
