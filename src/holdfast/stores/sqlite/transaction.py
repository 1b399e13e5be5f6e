"""One transaction on the SQLite file: what the verbs read and write in it.

It keeps the counters of the queues, the places in the line and the keys in step with the
jobs, and gathers inserts, so that a hundred callers who enqueue one job each cost one statement.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from msgspec.structs import force_setattr, replace

from holdfast import keys, lifecycle, traffic
from holdfast.errors import QueueFull
from holdfast.gates import GateRule
from holdfast.job import Attempt, ClaimedJob, JobRecord, NewJob, Stage, counts_as_scheduled, counts_as_waiting
from holdfast.keys import KeyName, KeyRecord
from holdfast.moment import to_microseconds
from holdfast.store import DEFAULT_BOUND, LONGEST_HISTORY, Enqueued, Hint, HintKind, Queue, QueueRecord
from holdfast.stores.decisions import Changes, WatchedKeys, newly_final
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.known_lines import KnownLines
from holdfast.stores.sqlite.ledger import SqliteLedger
from holdfast.stores.sqlite.rows import Row
from holdfast.stores.sqlite.statements import Executor, Parameters, chunks, records_statement, statement
from holdfast.traffic import Departure, at_once
from holdfast.turns import Bounds, in_trains

NEARLY_FULL = 0.75
"""From this part of its bound on, a queue that gets room again says so to producers that may wait for it."""


class OpenQueue:
    """A queue's row while the transaction is open."""

    def __init__(self, name: str, row: Row | None) -> None:
        self.name = name
        known: Row | None = row if row is not None and row[0] is not None else None
        self.waiting: int = known[0] if known else 0
        self.scheduled: int = known[1] if known else 0
        self.last_place: int = known[2] if known else 0
        self.declared_bound: int = known[3] if known else DEFAULT_BOUND
        self.override_bound: int | None = known[4] if known else None
        self.scheduled_bound: int = known[5] if known else DEFAULT_BOUND
        self.paused_at: int | None = known[6] if known else None
        self.turn: int = known[7] if known else 0
        """Where turns have come to: none of its lines had a higher one when it gave something."""
        self.has_open_lines: bool = bool(row and row[8])
        self.is_changed = False
        self.waited_before = self.waiting

    def row(self) -> Row:
        return (
            self.name,
            self.waiting,
            self.scheduled,
            self.last_place,
            self.declared_bound,
            self.override_bound,
            self.scheduled_bound,
            self.paused_at,
            self.turn,
        )

    @property
    def bound(self) -> int:
        return self.declared_bound if self.override_bound is None else self.override_bound

    @property
    def has_room_again(self) -> bool:
        return self.waiting < self.waited_before >= NEARLY_FULL * self.bound

    def refuse(self, waiting: int, scheduled: int, exempt: int = 0, later: int = 0) -> None:
        """QueueFull if there is no room for so many more, with those that are exempt, ready or later, before them."""
        there, then = self.waiting + exempt, self.scheduled + later
        if there + waiting > self.bound or then + scheduled > self.scheduled_bound:
            refusal = QueueRecord(
                self.name, there, then, self.declared_bound, self.override_bound, self.scheduled_bound
            ).refuse(waiting, scheduled)
            if refusal is not None:
                raise refusal

    def declare(self, declared: Queue) -> None:
        """Take over the bounds from the code."""
        self.declared_bound = declared.bound
        self.scheduled_bound = declared.scheduled_bound
        self.is_changed = True

    def add(self, waiting: int, scheduled: int) -> None:
        self.waiting += waiting
        self.scheduled += scheduled
        self.last_place += waiting + scheduled
        self.is_changed = True


class Transaction:
    """The state of one open transaction. Whoever opened it calls `finish` before the commit."""

    def __init__(
        self,
        connection: Executor,
        now: datetime,
        wanted: frozenset[HintKind] = frozenset(),
        *,
        is_durable: bool = True,
        is_careful: bool = False,
        declared: Mapping[str, Queue] | None = None,
        known_lines: KnownLines | None = None,
    ) -> None:
        """Only the kinds of hints that are `wanted` are gathered. The bounds that are `declared` hold already.

        `known_lines` are from earlier transactions on the same connection; only with one that has just begun.
        """
        self.now = now
        self.microseconds = to_microseconds(now)
        self.is_durable = is_durable
        self.is_careful = is_careful
        """Run again after something went wrong: what is there already must be looked for."""
        self.hints: dict[HintKind, tuple[set[str], set[UUID]]] = {}
        self._wanted = wanted
        self._connection = connection
        self._declared = declared or {}
        self._queues: dict[str, OpenQueue] = {}
        self._inserts: list[Row] = []
        self._keys: dict[KeyName, KeyRecord] = {}
        self._known_lines = known_lines or KnownLines()
        self._ledger = SqliteLedger(self, self._known_lines)

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────

    def execute(self, name: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement(name), parameters)

    def answer(self, name: str, parameters: Parameters = (), many: int = 1) -> str:
        """The JSON that a statement answers with."""
        ((text,),) = self._connection.execute(statement(name, many), parameters)
        return str(text)

    def change(self, name: str, parameters: Parameters = ()) -> int:
        return self._connection.change(statement(name), parameters)

    def change_many(self, name: str, values: Sequence[Row], first: Row = ()) -> int:
        """Execute a statement over rows of values, a chunk at a time; return how many rows of the table it changed."""
        changed = 0
        for chunk in chunks(values):
            flat = list(first)
            for row in chunk:
                flat.extend(row)
            changed += self._connection.change(statement(name, len(chunk)), flat)
        return changed

    def records(self, selection: str, parameters: Parameters) -> list[JobRecord]:
        self.flush()
        ((text,),) = self._connection.execute(records_statement(selection), parameters)
        return rows.read_records(text)

    def load(self, ids: Sequence[UUID]) -> dict[UUID, JobRecord]:
        self.flush()
        found: dict[UUID, JobRecord] = {}
        for chunk in chunks([id.bytes for id in ids]):
            ((text,),) = self._connection.execute(records_statement("select_by_id", len(chunk)), chunk)
            found |= {job.id: job for job in rows.read_records(text)}
        return found

    # ── queues and hints ─────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> OpenQueue:
        queue = self._queues.get(name)
        if queue is None:
            found = self.execute("queue", (name,))
            queue = self._queues[name] = OpenQueue(name, found[0] if found else None)
            if name in self._declared:
                queue.declare(self._declared[name])
        return queue

    def hint(self, kind: HintKind, queues: Iterable[str] = (), ids: Iterable[UUID] = ()) -> None:
        if kind not in self._wanted:
            return
        named_queues, named_ids = self.hints.setdefault(kind, (set(), set()))
        named_queues.update(queues)
        named_ids.update(ids)

    def all_hints(self) -> list[Hint]:
        return [Hint(kind, frozenset(queues), frozenset(ids)) for kind, (queues, ids) in self.hints.items()]

    # ── enqueuing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Decide first, then write: a refusal leaves nothing behind."""
        if not self.is_careful and not any(any(map(field, jobs)) for field in _NEEDS_A_LOOK):
            self._insert(jobs)
            return [Enqueued(new.id) for new in jobs]
        answers, fresh, taken = self._resolve(jobs)
        self._insert(fresh)
        self._keys |= taken
        return answers

    def _resolve(self, jobs: Sequence[NewJob]) -> tuple[list[Enqueued], list[NewJob], dict[KeyName, KeyRecord]]:
        there = self.load([new.id for new in jobs if new.is_repeat or self.is_careful])
        known = self._find_keys([name for new in jobs for name in keys.keys_of(new)])
        answers: list[Enqueued] = []
        fresh: dict[UUID, NewJob] = {}
        taken: dict[KeyName, KeyRecord] = {}
        for new in jobs:
            existing = _same_job(new, fresh, there) or keys.holder_of(new, known, self.now)
            answers.append(Enqueued(existing or new.id, is_existing=existing is not None))
            if existing is None:
                fresh[new.id] = new
                its_keys = keys.taken_by(new, self.now)
                taken |= its_keys
                known |= its_keys
        return answers, list(fresh.values()), taken

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        """Gather jobs for the next flush, if all their queues have room."""
        prepared = [(self.queue(name), group, self._later(group)) for name, group in _by_queue(jobs).items()]
        for queue, group, scheduled in prepared:
            self._refuse_beyond_bounds(queue, group, scheduled)
        lines = self._line_up(jobs) if any(map(_LINE, jobs)) else None
        for queue, group, scheduled in prepared:
            now, place = self.microseconds, queue.last_place
            if lines is None:
                self._inserts += [rows.new_row(new, now, place + index) for index, new in enumerate(group, 1)]
            else:
                self._inserts += [
                    rows.new_row(new, now, place + index, lines.get(new.id)) for index, new in enumerate(group, 1)
                ]
            queue.add(len(group) - scheduled, scheduled)
            if scheduled < len(group):
                self.hint(HintKind.WORK, (queue.name,))
            if scheduled:
                self.hint(HintKind.LATER, (queue.name,))

    def _refuse_beyond_bounds(self, queue: OpenQueue, jobs: Sequence[NewJob], scheduled: int) -> None:
        """Jobs that are exempt are looked for only when there is no room for all."""
        try:
            queue.refuse(len(jobs) - scheduled, scheduled)
        except QueueFull:
            exempt = [new for new in jobs if new.is_exempt]
            if not exempt:
                raise
            later = self._later(exempt)
            others = [new for new in jobs if not new.is_exempt]
            queue.refuse(len(others) - (scheduled - later), scheduled - later, len(exempt) - later, later)

    def _later(self, jobs: Sequence[NewJob]) -> int:
        """How many of these are not due yet."""
        return sum(
            lifecycle.due_time(new, self.now) > self.now for new in jobs if new.delay is not None or new.at is not None
        )

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _find_keys(self, names: Sequence[KeyName]) -> dict[KeyName, KeyRecord]:
        found: dict[KeyName, KeyRecord] = {}
        for chunk in chunks([name for name in names if name not in self._keys]):
            flat = [part for name in chunk for part in name]
            ((text,),) = self._connection.execute(statement("find_keys", len(chunk)), flat)
            found |= rows.read_keys(text)
        return found | {name: self._keys[name] for name in names if name in self._keys}

    def close_keys(self, ids: Sequence[UUID], retention_end: int) -> None:
        self.change_many("close_keys", [(id.bytes,) for id in ids], (retention_end, self.microseconds))

    def watch_keys(self, jobs: Iterable[JobRecord]) -> WatchedKeys:
        """Look up who has the keys of these jobs."""
        return WatchedKeys(self._find_keys([name for job in jobs for name in keys.keys_of(job)]), self.now)

    # ── claiming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, queue_name: str, bounds: Bounds, worker: UUID, token: UUID) -> list[ClaimedJob]:
        queue = self.queue(queue_name)
        if queue.paused_at is not None:
            return []
        self.flush()
        if queue.has_open_lines:
            claimed, numbers = self._claim_from_lines(queue_name, bounds, token)
        else:
            claimed, numbers = self._plain_jobs(queue_name, bounds.slots, token)
        if claimed:
            self.execute("start", (worker.bytes, token.bytes, self.microseconds, numbers))
            queue.waiting -= len(claimed)
            queue.is_changed = True
        return claimed

    def _plain_jobs(
        self, queue: str, slots: int, token: UUID, lowest: int = 0, highest: int = 9
    ) -> tuple[list[ClaimedJob], str]:
        """Jobs of these priorities that stand in no line, and their row numbers."""
        ((text, numbers),) = self.execute("claim", (queue, self.microseconds, slots, token.hex, lowest, highest))
        return rows.read_claims(text), numbers

    def _claim_from_lines(self, queue: str, bounds: Bounds, token: UUID) -> tuple[list[ClaimedJob], str]:
        """Jobs in lines and beside them, and their row numbers."""

        async def plain_jobs(lowest: int, highest: int, most: int) -> list[tuple[ClaimedJob, int]]:
            jobs, numbers = self._plain_jobs(queue, most, token, lowest, highest)
            return list(zip(jobs, rows.read_numbers(numbers), strict=True))

        picked = at_once(
            traffic.pick(
                self._ledger,
                plain_jobs,
                queue,
                bounds,
                lambda: self.microseconds,
                coin=bool(token.int & 1),
                is_ordered=self._known_lines.ordered.get(queue, False),
            )
        )
        self._known_lines.learn(self._known_lines.ordered, {queue: picked.has_orders})
        self._opened(picked.queues)
        if picked.has_timed:
            self.hint(HintKind.LATER, (queue,))
        numbers = [each for each in picked.jobs if isinstance(each, int)]
        text = self.answer("claim_by_number", (token.hex, rows.write_numbers(numbers))) if numbers else "[]"
        lined = rows.read_claims(text)
        if picked.behind:
            _couple(lined, numbers, picked.behind)
        if len(numbers) == len(picked.jobs):
            return lined, rows.write_numbers(numbers)
        of_lines = iter(zip(lined, numbers, strict=True))
        claimed = [next(of_lines) if isinstance(each, int) else each for each in picked.jobs]
        return [job for job, _ in claimed], rows.write_numbers(number for _, number in claimed)

    def claimed_before(self, worker: UUID, token: UUID) -> list[ClaimedJob]:
        ((text, lines),) = self.execute("claimed", (worker.bytes, token.bytes))
        claimed = rows.read_claims(text)
        behind = in_trains(zip((job.id for job in claimed), rows.read_lines_of_jobs(lines), strict=True))
        return [replace(job, behind=behind.get(job.id)) for job in claimed]

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, changes: Changes, key_end: int) -> None:
        """Keep changed records, and all that hangs on them: places, counters, keys, history, hints."""
        changed = [(before, self._place(before, after)) for before, after in changes.pairs if after is not before]
        self.change_many("save", [rows.changed_row(after) for _, after in changed])
        for before, after in changed:
            self._count(before, -1)
            self._count(after, +1)
        ended = newly_final(changed)
        self.close_keys([job.id for job in ended if job.is_keyed], key_end)
        if ended:
            self.hint(HintKind.FINISHED, ids=(job.id for job in ended))
        ready = {after.queue for _, after in changed if after.stage is Stage.READY}
        if ready:
            self.hint(HintKind.WORK, ready)
        later = {after.queue for _, after in changed if after.stage is Stage.SCHEDULED}
        if later:
            self.hint(HintKind.LATER, later)
        self._keys |= changes.reopened
        self._remember(changes.attempts)
        self._move_in_lines(changed, changes.unstarted)

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _line_up(self, jobs: Sequence[NewJob]) -> dict[UUID, int]:
        """New jobs come into their lines: which one each of them stands in."""
        lined = [new for new in jobs if new.line is not None]
        lines = self._ledger.enter([_entrance(new) for new in lined])
        if others := self._ledger.at_others(dict(zip(lines, (new.priority for new in lined), strict=True))):
            self._opened(at_once(traffic.advance(self._ledger, others)))
        if sleeping := self._ledger.sleeping(set(lines)):
            self._wake(
                line
                for new, line in zip(lined, lines, strict=True)
                if line in sleeping and lifecycle.due_time(new, self.now) <= self.now
            )
        return {new.id: line for new, line in zip(lined, lines, strict=True)}

    def _move_in_lines(self, changed: Sequence[tuple[JobRecord, JobRecord]], unstarted: Container[UUID]) -> None:
        moved = [(before, after) for before, after in changed if after.line is not None]
        if not moved:
            return
        places: dict[UUID, tuple[int, int]] = {}
        for chunk in chunks([after.id.bytes for _, after in moved]):
            places |= rows.read_places_by_id(self.answer("lines_of", chunk, len(chunk)))
        departures = [
            departure
            for before, after in moved
            if (departure := traffic.departure(before, after, is_unstarted=after.id in unstarted)) is not None
        ]
        self.leave(
            [
                Departure(*places[it.job], it.was_active, it.is_over, it.is_dead, it.waits, it.unstarted_at)
                for it in departures
            ]
        )
        ready = Stage.READY
        self._wake({places[after.id][1] for before, after in moved if before.stage is not ready is after.stage})

    def leave_by_id(self, ids: Sequence[UUID], *, was_active: bool) -> None:
        """Those of these jobs that stand in a line have come to their end."""
        found = [
            pair
            for chunk in chunks([id.bytes for id in ids])
            for pair in rows.read_pairs(self.answer("places_in_lines", chunk, len(chunk)))
        ]
        held = at_once(self._ledger.held_on_to({line for _, line in found})) if found else ()
        self.leave([Departure(job, line, was_active, True) for job, line in found if line in held])

    def leave(self, departures: Sequence[Departure[int]]) -> None:
        if departures:
            self._opened(at_once(traffic.leave(self._ledger, departures, self.microseconds)))

    def ripen_gates(self, most: int) -> int | None:
        """Open the lines whose time has come. When the next one's comes, if any."""
        due = self._ledger.due_gates(self.microseconds, most)
        if due:
            self._opened(at_once(traffic.ripen(self._ledger, due, self.microseconds)))
        return self._ledger.next_at()

    def override_gate(self, rule: GateRule, most: int | None, *, makes: bool) -> bool:
        """Let so many through a gate; None: as many as the code says. Whether there is such a gate."""
        self.flush()
        gate = self._ledger.gate(rule, makes=makes)
        if gate is None:
            return False
        _, queues = at_once(traffic.override_gate(self._ledger, gate, most, self.microseconds))
        self._opened(queues)
        return True

    def forget_lines(self, after: int) -> int:
        return self._ledger.forget(after)

    def _wake(self, lines: Iterable[int]) -> None:
        wanted = set(lines)
        if wanted:
            self._opened(at_once(traffic.wake(self._ledger, wanted)))

    def _opened(self, queues: Iterable[str]) -> None:
        for name in queues:
            self.queue(name).has_open_lines = True
            self.hint(HintKind.WORK, (name,))

    def _place(self, before: JobRecord, after: JobRecord) -> JobRecord:
        if not lifecycle.takes_new_place(before, after):
            return after
        queue = self.queue(after.queue)
        queue.last_place += 1
        queue.is_changed = True
        return replace(after, place=queue.last_place)

    def _count(self, job: JobRecord, by: int) -> None:
        queue = self.queue(job.queue)
        queue.waiting += by * counts_as_waiting(job.stage, job.attempt)
        queue.scheduled += by * counts_as_scheduled(job.stage, job.attempt)
        queue.is_changed = True

    def _remember(self, attempts: Mapping[UUID, Attempt]) -> None:
        self.change_many("record_failures", [rows.failure_row(id, attempt) for id, attempt in attempts.items()])
        for id, attempt in attempts.items():
            if attempt.run >= LONGEST_HISTORY:
                self.change("trim_history", (id.bytes, LONGEST_HISTORY))

    def delete(self, ids: Sequence[UUID]) -> None:
        """Final jobs, with their history and their progress. They are in no counter any more."""
        self.leave_by_id(ids, was_active=False)
        self.change_many("discard", [(id.bytes,) for id in ids])
        self.change_many("forget_history", [(id.bytes,) for id in ids])
        self.change_many("forget_progress", [(id.bytes,) for id in ids])

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Write the inserts that were gathered, before anything reads what they change."""
        if self._inserts:
            inserts, self._inserts = self._inserts, []
            self.change_many("enqueue", inserts)
        if self._keys:
            taken, self._keys = self._keys, {}
            self.change_many("take_keys", [rows.key_row(name, record) for name, record in taken.items()])

    def finish(self) -> None:
        """Write everything that was held back. After this the transaction may be committed."""
        self.flush()
        for queue in self._queues.values():
            if queue.is_changed:
                self.change("save_queue", queue.row())
            if queue.has_room_again:
                self.hint(HintKind.ROOM, (queue.name,))

    def committed(self) -> None:
        """It is in the file now."""
        self._ledger.committed()


_NEEDS_A_LOOK = tuple(attrgetter(name) for name in ("idempotency_key", "unique_key", "is_repeat"))
"""A job with none of these is inserted without asking whether it is there already."""
_LINE = attrgetter("line")
_entrance = attrgetter("line", "queue", "priority")


def _couple(jobs: Sequence[ClaimedJob], numbers: Sequence[int], behind: Mapping[int, int]) -> None:
    """Say of each job which one it is behind. They have just been read, and nobody else has them yet."""
    ids = {number: job.id for number, job in zip(numbers, jobs, strict=True)}
    for number, job in zip(numbers, jobs, strict=True):
        if number in behind:
            force_setattr(job, "behind", ids[behind[number]])  # copies of so many would take long


def _by_queue(jobs: Sequence[NewJob]) -> dict[str, Sequence[NewJob]]:
    """Mostly all of them go to one queue."""
    if not jobs:
        return {}
    name = jobs[0].queue
    if all(new.queue == name for new in jobs):
        return {name: jobs}
    groups: dict[str, list[NewJob]] = {}
    for new in jobs:
        groups.setdefault(new.queue, []).append(new)
    return dict(groups)


def _same_job(new: NewJob, fresh: Mapping[UUID, NewJob], there: Mapping[UUID, JobRecord]) -> UUID | None:
    if (job := fresh.get(new.id)) is not None:
        return keys.same_job(new, job.task, job.args_json)
    if (record := there.get(new.id)) is not None:
        return keys.same_job(new, record.task, record.args_json)
    return None
