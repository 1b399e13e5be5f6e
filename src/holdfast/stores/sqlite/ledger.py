"""Lines and gates in the file, within one transaction. What was read is kept: nobody else writes meanwhile.

Here they are known by their numbers, and so are the jobs in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, cast
from uuid import UUID

from msgspec.structs import replace

from holdfast import traffic
from holdfast.gates import (
    MOST_PASSED_OVER,
    SHORT_WINDOW,
    Gate,
    GateKind,
    GateRule,
    declared,
    is_full,
    is_held_on_to,
    is_idle,
    is_same_rule,
    made,
)
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.known_lines import Entrance, KnownLines
from holdfast.stores.sqlite.statements import chunks
from holdfast.traffic import at_once
from holdfast.turns import Line, LineState, line_of

if TYPE_CHECKING:
    from holdfast.stores.sqlite.transaction import Transaction


_WINDOW = 1000
_MOST_PARKED = 1000
"""Lines of one queue to open at once for one gate. If it has room for more, the next claim opens more."""


class SqliteLedger:
    """One transaction's lines and gates."""

    def __init__(self, transaction: Transaction, known: KnownLines) -> None:
        self._it = transaction
        self._known = known
        self._is_current = False
        """Whether what is known from before is known to be as it was."""
        self._lines: dict[int, Line[int]] = {}
        self._gates: dict[int, Gate[int]] = {}
        self._seen_open: dict[int, int] = {}
        """Lines of which no more is known than that they were open when this transaction began, and their priority."""
        self._made: set[int] = set()
        """Lines that this transaction has made."""
        self._told: set[int] = set()
        """Gates that it has made, or told what the code says."""
        self._entered: dict[Entrance, int] = {}
        """The lines of those, for jobs that come in."""
        self._has_forgotten = False

    def committed(self) -> None:
        """Remember what this transaction has seen and done."""
        if self._is_current and not self._has_forgotten:
            self._known.learn_states(self._lines, self._gates)

    def _recall(self) -> None:
        if not self._is_current:
            ((version,),) = self._it.execute("data_version")
            self._known.check(version)
            self._is_current = True

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def lines(self, ids: Iterable[int]) -> dict[int, Line[int]]:
        found: dict[int, Line[int]] = {}
        missing: list[int] = []
        for id in set(ids):
            line = self._line(id)
            if line is None:
                missing.append(id)
            else:
                found[id] = line
        if missing:
            text = self._it.answer("lines", (rows.write_numbers(missing),))
            found |= {line.id: line for line in self._keep(rows.read_lines(text))}
        return found

    def _line(self, id: int) -> Line[int] | None:
        self._recall()
        return self._lines.get(id) or self._known.lines.get(id)

    async def ways(self, lines: Iterable[int]) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        unknown: list[int] = []
        for id in lines:
            way = self._known.ways.get(id)
            if way is None:
                unknown.append(id)
            else:
                found[id] = way
        if unknown:
            ways = {id: line.gates for id, line in (await self.lines(unknown)).items()}
            found |= ways
            news = {id: way for id, way in ways.items() if id not in self._made}
            self._known.learn(self._known.ways, news)
            self._known.learn(self._known.line_behind, {gate: id for id, way in news.items() for gate in way})
        return found

    async def open_lines(self, queue: str, priority: int, most: int, *, is_unrated: bool) -> list[Line[int]]:
        if is_unrated:
            values = (queue, priority, MOST_PASSED_OVER, SHORT_WINDOW, most)
            return self._keep(rows.read_lines(self._it.answer("open_unrated_lines", values)))
        return self._keep(rows.read_lines(self._it.answer("open_lines", (queue, priority, most))))

    async def open_priorities(self, queue: str) -> set[int]:
        return {priority for (priority,) in self._it.execute("open_priorities", (queue,))}

    async def parked(self, wanted: Mapping[int, int]) -> list[Line[int]]:
        found: list[Line[int]] = []
        unknown: dict[int, int] = {}
        for id, number in wanted.items():
            only = self._only_line(id)
            if only is None:
                unknown[id] = min(number, _MOST_PARKED)
            elif only.parked_at == id:
                found.append(only)
        for most, gates in _by_number(unknown):
            text = self._it.answer("parked_lines", (most, rows.write_numbers(gates)))
            for gate, lines in zip(gates, rows.read_groups_of_lines(text), strict=True):
                for _, mine in groupby(lines, key=lambda line: line.queue):
                    found += islice(mine, wanted[gate])
        return self._keep(found)

    def _only_line(self, gate: int) -> Line[int] | None:
        """The line that leads through a gate, if it is the only one and is known."""
        self._recall()
        there = self._gates.get(gate) or self._known.gates.get(gate)
        line = self._known.line_behind.get(gate)
        return self._line(line) if line is not None and there is not None and there.lines == 1 else None

    def rank(self, line: int) -> int:
        return line

    async def current_turns(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        turns: dict[tuple[str, int], int] = {}
        for place in places:
            ((turn,),) = self._it.execute("current_turn", place)
            if turn is not None:
                turns[place] = turn
        return turns

    async def reached(self, queues: Iterable[str]) -> dict[str, int]:
        return {name: self._it.queue(name).turn for name in queues}

    async def reach(self, queue: str, turn: int) -> None:
        found = self._it.queue(queue)
        if turn > found.turn:
            found.turn = turn
            found.is_changed = True

    def _keep(self, lines: list[Line[int]]) -> list[Line[int]]:
        for line in lines:
            self._lines[line.id] = line
        return lines

    # ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def gates(self, ids: Iterable[int]) -> dict[int, Gate[int]]:
        self._recall()
        found: dict[int, Gate[int]] = {}
        missing: list[int] = []
        for id in set(ids):
            gate = self._gates.get(id) or self._known.gates.get(id)
            if gate is None:
                missing.append(id)
            else:
                found[id] = gate
        if missing:
            for gate in rows.read_gates(self._it.answer("gates", (rows.write_numbers(missing),))):
                self._gates[gate.id] = found[gate.id] = gate
        return found

    async def full(self, gates: Iterable[int]) -> set[int]:
        return {id for id, gate in (await self.gates(gates)).items() if is_full(gate)}

    def gate(self, rule: GateRule, *, makes: bool) -> Gate[int] | None:
        """The gate of a rule, made if there is none and that is wanted."""
        found = self._gates_by_id([rule.id])
        if not found and makes:
            self._it.change_many("make_gates", [rows.new_gate(made(rule))])
            found = self._gates_by_id([rule.id])
        return found.get(rule.id)

    def _gates_by_id(self, ids: Iterable[UUID]) -> dict[UUID, Gate[int]]:
        found: dict[UUID, Gate[int]] = {}
        for chunk in chunks([id.bytes for id in ids]):
            found |= rows.read_gates_by_id(self._it.answer("gates_by_id", chunk, len(chunk)))
        for gate in found.values():
            self._gates[gate.id] = gate
        return found

    def due_gates(self, now: int, most: int) -> dict[int, Gate[int]]:
        due = {gate.id: gate for gate in rows.read_gates(self._it.answer("due_gates", (now, most)))}
        self._gates |= due
        return due

    def next_at(self) -> int | None:
        ((opening,),) = self._it.execute("next_opening")
        return None if opening is None else int(opening)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ready(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        self._it.flush()
        found: dict[int, list[int]] = {}
        for most, lines in _by_number(wanted):
            text = self._it.answer("ready_in_lines", (self._it.microseconds, most, rows.write_numbers(lines)))
            for line, jobs in zip(lines, rows.read_groups_of_numbers(text), strict=True):
                found[line] = jobs[: wanted[line]] if most > wanted[line] else jobs
        return found

    async def lines_of_ready(self, jobs: Sequence[int]) -> dict[int, int]:
        self._it.flush()
        text = self._it.answer("lines_of_ready", (self._it.microseconds, rows.write_numbers(jobs)))
        return dict(rows.read_pairs(text))

    async def held_on_to(self, lines: Iterable[int]) -> set[int]:
        """Of these lines, those whose jobs take something from a gate that they give back."""
        wanted = set(lines)
        unknown = wanted - self._known.held.keys()
        held: set[int] = set()
        if unknown:
            ways = await self.ways(unknown)
            gates = await self.gates({id for way in ways.values() for id in way})
            news = {id: any(is_held_on_to(gates[gate]) for gate in way if gate in gates) for id, way in ways.items()}
            held.update(id for id, is_held in news.items() if is_held)
            self._known.learn(self._known.held, {id: is_held for id, is_held in news.items() if id not in self._made})
        return held | {id for id in wanted - unknown if self._known.held.get(id)}

    # ── coming in ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, entrances: Sequence[Entrance]) -> list[int]:
        """Jobs are coming in: the line of each, made if there is none. Their gates know then what the code says."""
        known = list(map(self._known.numbers.get, entrances))
        there = self._look_up({number for number in known if number is not None})
        strange = [entrance for entrance, number in zip(entrances, known, strict=True) if number not in there]
        if not strange:
            return cast("list[int]", known)
        # In their order, so that what came first is made first.
        made_now = self._introduce(list(dict.fromkeys(strange)))
        return [
            number if number is not None and number in there else made_now[entrance]
            for entrance, number in zip(entrances, known, strict=True)
        ]

    def at_others(self, priorities: Mapping[int, int]) -> dict[int, int]:
        """Of the lines that jobs of these priorities have come into, those that stand at others."""
        return {line: priority for line, priority in priorities.items() if self._priority(line) != priority}

    def _priority(self, line: int) -> int:
        known = self._line(line)
        return self._seen_open[line] if known is None else known.priority

    def sleeping(self, lines: Iterable[int]) -> set[int]:
        """Of the lines that jobs have come into, those that are not open."""
        return {line for line in lines if not self._is_open(line)}

    def _is_open(self, line: int) -> bool:
        known = self._line(line)
        return line in self._seen_open if known is None else known.state is LineState.OPEN

    def _look_up(self, numbers: set[int]) -> set[int]:
        """Which of these lines are there."""
        there = {number for number in numbers if number in self._seen_open or self._line(number) is not None}
        if missing := numbers - there:
            ((sleeping, text),) = self._it.execute("sleeping_lines", (rows.write_numbers(missing),))
            self._seen_open |= rows.read_pairs(text)
            there |= missing & self._seen_open.keys()
            there.update(line.id for line in self._keep(rows.read_lines(sleeping)))
        return there

    def _introduce(self, entrances: Sequence[Entrance]) -> dict[Entrance, int]:
        if all(entrance in self._entered for entrance in entrances):
            return self._entered
        wanted = {entrance[0].id_for(*entrance[1:]): entrance for entrance in entrances}
        gates = self._tell({gate.id: gate for rule, queue, _ in wanted.values() for gate in rule.gates_in(queue)})
        lines = self._lines_by_id(wanted)
        fresh = [line_of(*entrance) for id, entrance in wanted.items() if id not in lines]
        if fresh:
            self._it.change_many("make_lines", [rows.new_line(line, gates) for line in fresh])
            lines |= self._lines_by_id([line.id for line in fresh])
            self._made.update(lines[line.id].id for line in fresh)
            more = Counter(gates[id] for line in fresh for id in line.gates)
            at_once(
                self.save([], [replace(self._gates[id], lines=self._gates[id].lines + n) for id, n in more.items()])
            )
        numbers: dict[Entrance, int] = {}
        news: dict[Entrance, int] = {}
        for entrance in entrances:
            line = lines[entrance[0].id_for(*entrance[1:])]
            numbers[entrance] = line.id
            if line.id in self._made or not self._told.isdisjoint(line.gates):
                self._entered[entrance] = line.id
            else:
                news[entrance] = line.id
        self._known.learn(self._known.numbers, news)
        return numbers

    def _tell(self, rules: Mapping[UUID, GateRule]) -> dict[UUID, int]:
        """Let gates know what the code says, and make those that are missing. Their numbers."""
        before = self._gates_by_id(rules)
        if fresh := [id for id in rules if id not in before]:
            self._it.change_many("make_gates", [rows.new_gate(made(rules[id])) for id in fresh])
            made_now = self._gates_by_id(fresh)
            self._told.update(gate.id for gate in made_now.values())
            before |= made_now
        changed = [after for id, gate in before.items() if (after := declared(gate, rules[id])) != gate]
        if changed:
            at_once(self.save([], changed))
            self._told.update(gate.id for gate in changed)
            # What the code said before is to be heard again, if it says so again.
            self._known.numbers.clear()
            self._entered.clear()
        return {id: gate.id for id, gate in before.items()}

    def _lines_by_id(self, ids: Iterable[UUID]) -> dict[UUID, Line[int]]:
        found: dict[UUID, Line[int]] = {}
        for chunk in chunks([id.bytes for id in ids]):
            found |= rows.read_lines_by_id(self._it.answer("lines_by_id", chunk, len(chunk)))
        self._keep(list(found.values()))
        return found

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def save(self, lines: Iterable[Line[int]], gates: Iterable[Gate[int]]) -> None:
        """Mostly little has changed, and only that is written."""
        self._recall()  # what is known from before must not outlive this
        moved = list(lines)
        self._it.change_many("save_lines", [rows.moved_line(line) for line in moved])
        self._keep(moved)
        used: list[Gate[int]] = []
        orders: list[Gate[int]] = []
        redeclared: list[Gate[int]] = []
        for gate in gates:
            before = self._gates.get(gate.id) or self._known.gates[gate.id]
            if not is_same_rule(before, gate):
                redeclared.append(gate)
            elif gate.kind is GateKind.ORDER:
                orders.append(gate)
            else:
                used.append(gate)
            self._gates[gate.id] = gate
        self._it.change_many("save_gates", [rows.used_gate(gate) for gate in used])
        self._it.change_many("save_orders", [(gate.id, gate.held, gate.holder) for gate in orders])
        self._it.change_many("declare_gates", [rows.declared_gate(gate) for gate in redeclared])

    def forget(self, after: int) -> int:
        """Forget some lines and gates that nobody needs any more. Where to go on; 0 means from the beginning."""
        self._it.flush()
        ((last, looked_at, text),) = self._it.execute("forgotten_lines", (after, _WINDOW))
        lines = rows.read_lines(text)
        at_once(traffic.forget(self, lines))
        self._it.change("forget_lines", (rows.write_numbers(line.id for line in lines),))
        self._forget_all()
        gates = rows.read_gates(self._it.answer("unused_gates", (_WINDOW,)))
        idle = [gate.id for gate in gates if is_idle(gate, self._it.microseconds)]
        self._it.change("forget_gates", (rows.write_numbers(idle),))
        self._forget_all()
        return int(last) if looked_at == _WINDOW else 0

    def _forget_all(self) -> None:
        """Some of what is known may not be there any more."""
        self._has_forgotten = True
        self._known.forget_states()
        for known in (self._lines, self._gates, self._seen_open, self._entered):
            known.clear()


def _by_number(wanted: Mapping[int, int]) -> list[tuple[int, list[int]]]:
    """Those of which about the same number is wanted are asked for together: powers of two."""
    groups: dict[int, list[int]] = {}
    for id, number in wanted.items():
        groups.setdefault(1 << (number - 1).bit_length(), []).append(id)
    return list(groups.items())
