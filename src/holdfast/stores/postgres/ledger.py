"""Lines and gates in PostgreSQL, within one transaction.

Whoever changes a gate has its row locked, and nobody waits in a circle:

- Jobs are locked before gates. Claims lock gates first, but wait for no job.
- A transaction waits for gates once, for all of them together, in the order of their ids. After that it takes
  only those that nobody else is at.
- Only claims wait for lines: for one, with no line or gate in their hands. Whoever makes room, or makes jobs ready,
  leaves a wake, and whoever claims next from that queue opens the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.gates import (
    MOST_PASSED_OVER,
    SHORT_WINDOW,
    Gate,
    GateKind,
    GateRule,
    LineRule,
    declared,
    is_full,
    is_same_rule,
)
from holdfast.job import ClaimedJob
from holdfast.stores.postgres import rows
from holdfast.turns import Bounds, Line, LineState, at_priority, line_of, moved

if TYPE_CHECKING:
    from holdfast.stores.postgres.transaction import Transaction

_rules = msgspec.json.Decoder(LineRule)
_MOST_PARKED: Final = 1000
"""Lines of one queue to open at once for one gate. If it has room for more, the next claim opens more."""


class PostgresLedger:
    """One transaction's lines and gates. What was read under a lock is kept: nobody else changes it meanwhile."""

    def __init__(
        self,
        transaction: Transaction,
        now: int,
        turns: Mapping[int, int] | None = None,
        reached: Mapping[str, int] | None = None,
        bounds: Bounds | None = None,
        most_each: int | None = None,
        *,
        is_ordered: bool = False,
    ) -> None:
        """`turns`: at which priorities the queue that is claimed from has open lines, and whose turn it is there.
        `reached`: where turns have come to in that queue.

        `most_each`: so many jobs of each line are looked up at first, or as many as it could give within the bounds. If
        they are expected to lead to orders, that is what may come behind the first one, in equal parts.
        """
        self._bounds = bounds or Bounds(0)
        self._most_each = most_each
        self._is_ordered = is_ordered
        self._it = transaction
        self.now = now
        """The time: of the transaction's beginning, or when the gates came into our hands for which we had to wait."""
        self._turns = turns
        self._reached = reached or {}
        self.has_others = False
        """There were open lines that were not looked at."""
        self.most_asked = 1
        """So many jobs of one line were asked for."""
        self.must_wait = False
        """There was one to wait for, but not with others in hand."""
        self._may_wait = True
        self._has_waited = False
        self._lines: dict[UUID, Line] = {}
        self._gates: dict[UUID, Gate] = {}
        self._foreign: set[UUID] = set()
        """Gates that somebody else is at: they were only looked at."""
        self._ready: dict[UUID, list[UUID]] = {}
        self._most_ready = 0
        """How many of the ready jobs of each line were looked up with it."""
        self._seen: set[tuple[str, int]] = set()
        """Queues and priorities of which all open lines are known."""
        self._in_other_hands: set[UUID] = set()
        """Lines with a job that has their order and is ready, but that somebody else has locked."""
        self._known: dict[UUID, int] = {}
        """How many jobs of each line were looked up: what was not taken of them is still in an open line."""
        self._changed_lines: dict[UUID, Line] = {}
        self._changed_gates: dict[UUID, Gate] = {}
        self._changed_rules: dict[UUID, Gate] = {}
        self._to_open: dict[UUID, int] = {}
        """Gates that have room, and for how many."""
        self._to_reach: tuple[str, int] | None = None
        """The queue that is claimed from, and where turns have come to there now."""

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def lines(self, ids: Iterable[UUID]) -> dict[UUID, Line]:
        wanted = set(ids)
        missing = [id for id in wanted if id not in self._lines]
        if missing:
            self.keep_lines(map(rows.line, await self._it.fetch("select_lines", missing)))
        return {id: self._lines[id] for id in wanted if id in self._lines}

    async def ways(self, lines: Iterable[UUID]) -> dict[UUID, tuple[UUID, ...]]:
        return {id: line.gates for id, line in (await self.lines(lines)).items()}

    async def open_priorities(self, queue: str) -> set[int]:
        return {*(self._turns or ()), *(line.priority for line in self._lines.values())}

    async def open_lines(self, queue: str, priority: int, most: int, *, is_unrated: bool) -> list[Line]:
        """Those whose gates can be had, too."""
        if (queue, priority) in self._seen and not self._has_open(queue, priority):
            return []
        if self._may_wait:
            return await self._look(queue, priority, most) or await self._wait_for_line(queue, priority)
        await self.flush()
        if is_unrated:
            found = await self._it.fetch("open_unrated_lines", queue, priority, MOST_PASSED_OVER, SHORT_WINDOW, most)
        else:
            found = await self._it.fetch("open_lines", queue, priority, most)
        more = map(rows.line, found)
        # One that this very claim has closed may be open again, for the next one.
        return await self._with_gates(self.keep_lines(line for line in more if not self._has_done(line.id)))

    def _has_done(self, line: UUID) -> bool:
        return line in self._lines and self._lines[line].state is not LineState.OPEN

    def _has_open(self, queue: str, priority: int) -> bool:
        place = queue, priority
        return any(
            (line.queue, line.priority) == place and line.state is LineState.OPEN for line in self._lines.values()
        )

    async def _look(self, queue: str, priority: int, most: int) -> list[Line]:
        """The first look waits for gates, and brings the ready jobs along."""
        woken = [line for line in self._lines.values() if line.priority == priority]
        ((row),) = await self._it.fetch(
            "look_at_lines",
            queue,
            priority,
            most,
            self._bounds.slots,
            self._bounds.slots if self._most_each is None else self._most_each,
            self.now,
            [line.id for line in woken],
            [line.turn for line in woken],
            self._bounds.most_behind if self._is_ordered else None,
            self._it.given_now,
        )
        look = rows.look(row, queue, priority)
        self.has_others |= look.has_others
        if not look.lines:
            return []
        self._may_wait = False
        self.now = look.now
        self._most_ready = look.most
        self._ready = look.ready
        self.keep_gates(look.gates)
        if len(look.lines) < most:
            self._seen.add((queue, priority))
        return self.keep_lines(look.lines)

    async def _wait_for_line(self, queue: str, priority: int) -> list[Line]:
        """Others are at all of them: the next one is ours when its claimer has done."""
        next_one = await self._it.fetch("next_line", queue, priority)
        if not next_one or self._has_waited:
            return []
        if self._lines:  # which are about to be opened
            self.must_wait = True
            return []
        self._has_waited = True  # and may have it in its hands
        found = await self._it.fetch("wait_for_line", next_one[0]["id"])
        lines = await self._with_gates(self.keep_lines(map(rows.line, found)))
        ((self.now,),) = await self._it.fetch("now", self._it.given_now)
        return lines

    async def _with_gates(self, lines: list[Line]) -> list[Line]:
        gates = await self.gates({id for line in lines for id in line.gates})
        return [line for line in lines if all(id in gates and id not in self._foreign for id in line.gates)]

    async def parked(self, wanted: Mapping[UUID, int]) -> list[Line]:
        """They are not ours to open: the next claim does it."""
        fewest = 0 if self._turns is None else 2  # a claim has one of a gate's lines in its hands
        self._to_open |= {
            id: min(number, _MOST_PARKED)
            for id, number in wanted.items()
            if id not in self._foreign and self._gates[id].lines >= fewest
        }
        return []

    def rank(self, line: UUID) -> int:
        return line.int

    async def current_turns(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if self._turns is not None:
            return {(queue, priority): self._turns[priority] for queue, priority in places if priority in self._turns}
        queues, priorities = zip(*places, strict=True)
        return {(row[0], row[1]): row[2] for row in await self._it.fetch("current_turns", queues, priorities)}

    async def reached(self, queues: Iterable[str]) -> dict[str, int]:
        wanted = list(queues)
        if all(queue in self._reached for queue in wanted):
            return {queue: self._reached[queue] for queue in wanted}
        return {row["name"]: row["turn"] for row in await self._it.fetch("reached_turns", wanted)}

    async def reach(self, queue: str, turn: int) -> None:
        """Keep it for `flush`."""
        if turn > max(self._reached.get(queue, 0), self._to_reach[1] if self._to_reach else 0):
            self._to_reach = queue, turn

    @property
    def lines_used_up(self) -> int:
        """How many of the lines that were looked at have nothing more to give for now."""
        return sum(line.state is not LineState.OPEN for line in self._lines.values())

    def is_open(self, line: UUID) -> bool:
        return self._lines[line].state is LineState.OPEN

    def keep_lines(self, lines: Iterable[Line]) -> list[Line]:
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

    async def full(self, gates: Iterable[UUID]) -> set[UUID]:
        """As in attend.sql. They are not locked: should somebody leave meanwhile, he wakes what is parked there."""
        found = map(rows.gate, await self._it.fetch("select_gates", list(gates)))
        return {gate.id for gate in found if gate.kind is GateKind.ORDER and gate.lines == 1 and is_full(gate)}

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
        return self.keep_gates(map(rows.gate, await self._it.fetch("due_gates", self.now, most)))

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def ready(self, wanted: Mapping[UUID, int]) -> dict[UUID, list[UUID]]:
        self.most_asked = max(self.most_asked, *wanted.values())
        found = {id: self._ready.pop(id) for id in wanted if id in self._ready}
        # What is not there was not looked up with its line, or may have been taken since.
        more = {
            id: most
            for id, most in wanted.items()
            if id not in found or (most > self._most_ready and len(found[id]) >= self._most_ready)
        }
        if more:
            found |= {id: [] for id in more}
            queue = self._lines[next(iter(more))].queue  # a claim is from one
            for row in await self._it.fetch("ready_in_lines", queue, list(more), list(more.values()), self.now):
                found[row[0]].append(row[1])
        await self._keep_orders(found)
        self._known |= {id: len(jobs) for id, jobs in found.items()}
        return found

    async def _keep_orders(self, found: dict[UUID, list[UUID]]) -> None:
        """Of an order, nobody comes before one that somebody else has locked: such a one may stay ready."""
        wanted = {id: len(jobs) for id, jobs in found.items() if jobs and self._leads_to_order(id)}
        if not wanted:
            return
        first: dict[UUID, list[UUID]] = {id: [] for id in wanted}
        queue = self._lines[next(iter(wanted))].queue
        for row in await self._it.fetch("first_in_lines", queue, list(wanted), list(wanted.values()), self.now):
            first[row[0]].append(row[1])
        for id, jobs in first.items():
            pairs = zip(found[id], jobs, strict=False)
            found[id] = [mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]

    def _leads_to_order(self, line: UUID) -> bool:
        return any(self._gates[id].kind is GateKind.ORDER for id in self._lines[line].gates if id in self._gates)

    async def lines_of_ready(self, jobs: Iterable[UUID]) -> dict[UUID, UUID]:
        found: dict[UUID, UUID] = {}
        for id, line, is_ours in await self._it.fetch("lines_of_ready", list(jobs), self.now):
            if is_ours:
                found[id] = line
            else:
                self._in_other_hands.add(line)
        self._known |= dict.fromkeys(found.values(), 1)
        return found

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def save(self, lines: Iterable[Line], gates: Iterable[Gate]) -> None:
        """Keep it for `flush`."""
        self._changed_lines |= {line.id: line for line in self.keep_lines(map(self._unparked, lines))}
        changed = {gate.id: gate for gate in gates if gate.id not in self._foreign}
        if self._turns is None:  # jobs that are claimed change no rule
            self._changed_rules |= {
                id: gate for id, gate in changed.items() if not is_same_rule(gate, self._gates.get(id, gate))
            }
        self._gates |= changed
        self._changed_gates |= changed

    def _unparked(self, line: Line) -> Line:
        """Nobody would open a line again whose order is held by a ready job: closed, it is open, since it has that."""
        if line.state is LineState.PARKED and line.id in self._in_other_hands:
            return moved(line, LineState.CLOSED, line.turn)
        return line

    async def flush(self) -> set[str]:
        """Write what was saved, and have lines opened where there is room. Answers with their queues."""
        await self._flush_rules()
        if not self._changed_lines and not self._changed_gates and not self._to_open:
            return set()
        ((queues,),) = await self._it.fetch("save_traffic", *self._take_changes())
        return set(queues)

    async def start(
        self, worker: UUID, token: UUID, jobs: Sequence[UUID], behind: Mapping[UUID, UUID]
    ) -> tuple[set[str], list[ClaimedJob]]:
        """The same, and jobs that are locked begin, some of them `behind` others. Answers with them, in their order."""
        await self._flush_rules()
        found = await self._it.fetch("start", *self._take_changes(), worker, token, jobs)
        return set(found[0]["queues"]), rows.started(found, jobs, behind)

    async def _flush_rules(self) -> None:
        rules, self._changed_rules = self._changed_rules, {}
        if rules:
            await self._it.fetch("save_rules", *rows.saved_rules(list(rules.values())))

    def _take_changes(self) -> tuple[Any, ...]:
        """What save_traffic.sql takes."""
        lines, self._changed_lines = self._changed_lines, {}
        gates, self._changed_gates = self._changed_gates, {}
        to_open, self._to_open = self._to_open, {}
        to_reach, self._to_reach = self._to_reach or (None, None), None
        # Jobs of the lines at hand run, or have just done.
        served = list({line.queue for line in self._lines.values()})
        changed = *rows.saved_lines(lines.values(), self._known), *rows.saved_gates(gates.values())
        return *changed, list(to_open), list(to_open.values()), self.now, served, *to_reach

    async def enter(self, queue: str, news: Mapping[UUID, tuple[str, int]]) -> set[UUID]:
        """Make lines that are not there, and their gates; and let all know what the code says now, and which priority.

        Answers with those that were made. Others may have come in between, and are not locked.
        """
        rules = {id: (_rules.decode(rule), queue, priority) for id, (rule, priority) in news.items()}
        texts = {id: rule for id, (rule, _) in news.items()}
        lines = [line_of(*rule) for id, rule in rules.items() if id not in self._lines]
        if known := [id for id in rules if id in self._lines]:
            priorities = {id: news[id][1] for id in known}
            await self._it.fetch("tell_lines", known, [texts[id] for id in known], [priorities[id] for id in known])
            others = [self._lines[id] for id in known if self._lines[id].priority != priorities[id]]
            self.keep_lines(at_priority(line, priorities[line.id]) for line in others)  # which is about to be opened
        made: set[UUID] = set()
        if lines:
            made |= {row["id"] for row in await self._it.fetch("make_lines", rows.new_lines(lines, texts))}
            self.keep_lines(line for line in lines if line.id in made)
        named: dict[UUID, GateRule] = {gate.id: gate for rule, *_ in rules.values() for gate in rule.gates_in(queue)}
        before = self.keep_gates(map(rows.gate, await self._it.fetch("make_gates", *rows.new_gates(named))))
        self._may_wait = False
        after = {id: declared(gate, named[id]) for id, gate in before.items()}
        for line in lines:
            for id in line.gates if line.id in made else ():
                after[id] = replace(after[id], lines=after[id].lines + 1)
        await self.save([], [gate for id, gate in after.items() if gate != before[id]])
        return made
