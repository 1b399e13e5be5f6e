"""Lines and gates in PostgreSQL, within one transaction.

Whoever changes a gate has its row locked, and nobody waits in a circle:

- Jobs are locked before gates. Claims lock gates first, but wait for no job.
- A transaction waits for gates once, for all of them together, in the order of their ids. After that it takes
  only those that nobody else is at.
- Only claims and wakes wait for lines, and before they have any gate. Whoever frees a gate opens the lines that are
  parked there and that nobody else is at: who is at one opens it himself, or has yet to see the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec.structs import replace

from holdfast.gates import Gate, GateRule, LineRule, declared
from holdfast.stores.postgres import rows
from holdfast.traffic import Line, line_of

if TYPE_CHECKING:
    from holdfast.stores.postgres.transaction import Transaction

_MOST_PARKED: Final = 1000
"""Lines to open at once for one gate. If it has room for more, the next claim opens more."""


class PostgresLedger:
    """One transaction's lines and gates. What was read under a lock is kept: nobody else changes it meanwhile."""

    def __init__(self, transaction: Transaction, now: int, *, locks_lines: bool = False) -> None:
        """`locks_lines`: those that are asked for by id are going to be changed."""
        self._it = transaction
        self._now = now
        self._locks_lines = locks_lines
        self._may_wait = True
        self._lines: dict[UUID, Line] = {}
        self._gates: dict[UUID, Gate] = {}
        self._foreign: set[UUID] = set()
        """Gates that somebody else is at: they were only looked at."""

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def lines(self, ids: Iterable[UUID]) -> dict[UUID, Line]:
        wanted = set(ids)
        missing = [id for id in wanted if id not in self._lines]
        if missing:
            selection = "lock_lines" if self._locks_lines else "select_lines"
            self._keep(map(rows.line, await self._it.fetch(selection, missing)))
        return {id: self._lines[id] for id in wanted if id in self._lines}

    async def open_priorities(self, queue: str) -> set[int]:
        return {row["priority"] for row in await self._it.fetch("open_priorities", queue)}

    async def open_lines(self, queue: str, priority: int, most: int) -> list[Line]:
        """Those whose gates can be had, too."""
        found = await self._it.fetch("open_lines", queue, priority, most)
        if not found and self._may_wait:
            found = await self._it.fetch("wait_for_line", queue, priority)
        lines = self._keep(map(rows.line, found))
        gates = await self.gates({id for line in lines for id in line.gates})
        return [line for line in lines if all(id in gates and id not in self._foreign for id in line.gates)]

    async def parked(self, wanted: Mapping[UUID, int]) -> list[Line]:
        numbers = [min(most, _MOST_PARKED) for most in wanted.values()]
        return self._keep(map(rows.line, await self._it.fetch("parked_lines", list(wanted), numbers)))

    async def current_turns(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        queues, priorities = zip(*places, strict=True)
        return {(row[0], row[1]): row[2] for row in await self._it.fetch("current_turns", queues, priorities)}

    def _keep(self, lines: Iterable[Line]) -> list[Line]:
        kept = list(lines)
        self._lines |= {line.id: line for line in kept}
        return kept

    # ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def gates(self, ids: Iterable[UUID]) -> dict[UUID, Gate]:
        wanted = set(ids)
        missing = [id for id in wanted if id not in self._gates]
        if missing and self._may_wait:
            await self._read_gates("lock_gates", missing)
            self._may_wait = False
        elif missing:
            await self._read_gates("try_gates", missing)
            if taken := [id for id in missing if id not in self._gates]:
                await self._read_gates("select_gates", taken)
                self._foreign.update(taken)
        return {id: self._gates[id] for id in wanted if id in self._gates}

    async def _read_gates(self, selection: str, ids: list[UUID]) -> None:
        self.keep_gates(map(rows.gate, await self._it.fetch(selection, ids)))

    def keep_gates(self, gates: Iterable[Gate]) -> dict[UUID, Gate]:
        """Gates that are locked."""
        kept = {gate.id: gate for gate in gates}
        self._gates |= kept
        return kept

    async def due_gates(self, most: int) -> dict[UUID, Gate]:
        """Those whose time has come, and that nobody else is at."""
        self._may_wait = False
        return self.keep_gates(map(rows.gate, await self._it.fetch("due_gates", self._now, most)))

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ready(self, wanted: Mapping[UUID, int]) -> dict[UUID, list[UUID]]:
        found: dict[UUID, list[UUID]] = {id: [] for id in wanted}
        for row in await self._it.fetch("ready_in_lines", list(wanted), list(wanted.values()), self._now):
            found[row[0]].append(row[1])
        return found

    async def lines_of_ready(self, jobs: Iterable[UUID]) -> dict[UUID, UUID]:
        return {row[0]: row[1] for row in await self._it.fetch("lines_of_ready", list(jobs), self._now)}

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def save(self, lines: Iterable[Line], gates: Iterable[Gate]) -> None:
        changed = self._keep(lines)
        if changed:
            await self._it.fetch("save_lines", *rows.saved_lines(changed))
        mine = {gate.id: gate for gate in gates if gate.id not in self._foreign}
        if mine:
            await self._it.fetch("save_gates", *rows.saved_gates(list(mine.values())))
            self._gates |= mine

    async def enter(self, rules: Mapping[UUID, tuple[LineRule, str, int]]) -> None:
        """Make lines that are not there, and their gates; and let the gates know what the code says now."""
        lines = [line_of(*rule) for rule in rules.values()]
        made = {row["id"] for row in await self._it.fetch("make_lines", rows.new_lines(lines))}
        self._keep(line for line in lines if line.id in made)
        named: dict[UUID, GateRule] = {gate.id: gate for rule, _, _ in rules.values() for gate in rule.gates}
        before = self.keep_gates(map(rows.gate, await self._it.fetch("make_gates", *rows.new_gates(named))))
        self._may_wait = False
        after = {id: declared(gate, named[id]) for id, gate in before.items()}
        for line in lines:
            for id in line.gates if line.id in made else ():
                after[id] = replace(after[id], lines=after[id].lines + 1)
        await self.save([], [gate for id, gate in after.items() if gate != before[id]])
