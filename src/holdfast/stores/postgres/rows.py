"""Between rows of PostgreSQL and values of the domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice, repeat
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.gates import Gate, GateKind, GateRule
from holdfast.job import Attempt, ClaimedJob, Delivery, Failure, FailureKind, JobRecord, Lane, NewJob, Stage
from holdfast.keys import KeyKind, KeyName, KeyRecord
from holdfast.lifecycle import takes_new_place
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
from holdfast.store import Progress, ProgressReport, PublishedTask, QueueRecord, TaskDefinition, WorkerRecord
from holdfast.turns import Line, LineState, in_trains

_DELIVERIES = (Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE, Delivery.TRANSACTIONAL)
_DELIVERY_CODES = {delivery: code for code, delivery in enumerate(_DELIVERIES)}
_STAGES = {int(stage): stage for stage in Stage}
_LANES = {int(lane): lane for lane in Lane}

Row = Any
"""A row as the driver gives it: it can be read by position and by name."""


def _optional_time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)


def _optional_microseconds(time: datetime | None) -> int | None:
    return None if time is None else to_microseconds(time)


def as_json(values: object) -> str:
    return msgspec.json.encode(values).decode()


# ── new jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _NewRow(msgspec.Struct, omit_defaults=True, gc=False):
    """A new job as holdfast.enqueue takes it."""

    id: UUID
    task: str
    queue: str
    args: str
    priority: int = 5
    max_attempts: int = 5
    delivery: int = 0
    delay: int | None = None
    at: int | None = None
    expires_in: int | None = None
    expires_at: int | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    unique_key: str | None = None
    unique_window: int | None = None
    line: UUID | None = None
    tags: tuple[str, ...] | None = None
    context: str | None = None
    is_repeat: bool = False
    is_exempt: bool = False


def new_jobs(jobs: Iterable[NewJob]) -> str:
    """Jobs as holdfast.enqueue takes them."""
    return as_json([_new_row(new) for new in jobs])


def _new_row(new: NewJob) -> _NewRow:
    row = _NewRow(
        new.id, new.task, new.queue, new.args_json, new.priority, new.max_attempts, _DELIVERY_CODES[new.delivery]
    )
    if new.delay is not None:
        row.delay = new.delay // MICROSECOND
    if new.at is not None:
        row.at = to_microseconds(new.at)
    if new.expires_in is not None:
        row.expires_in = new.expires_in // MICROSECOND
    if new.expires_at is not None:
        row.expires_at = to_microseconds(new.expires_at)
    if new.idempotency_key is not None:
        row.idempotency_key = new.idempotency_key
        row.fingerprint = None if new.fingerprint is None else f"\\x{new.fingerprint.hex()}"
    if new.unique_key is not None:
        row.unique_key = new.unique_key
        row.unique_window = None if new.unique_window is None else new.unique_window // MICROSECOND
    if new.line is not None:
        row.line = new.line.id_for(new.queue, new.priority)
    if new.tags:
        row.tags = new.tags
    row.context = new.context_json
    row.is_repeat = new.is_repeat
    row.is_exempt = new.is_exempt
    return row


_LINES_OF_A_WAKE: Final = 50


class WokenLines(msgspec.Struct):
    """Some lines of one queue as holdfast.enqueue takes them, with the rules that their jobs are under."""

    queue: str
    lines: list[UUID] = []
    priorities: list[int] = []
    rules: list[str] = []


def woken_lines(jobs: Sequence[NewJob]) -> list[WokenLines]:
    """The lines of new jobs as holdfast.enqueue takes them, each once."""
    last = {new.line.id_for(new.queue, new.priority): new for new in jobs if new.line is not None}
    found: list[WokenLines] = []
    open_ones: dict[str, WokenLines] = {}
    for id, new in last.items():
        those = open_ones.get(new.queue)
        if those is None or len(those.lines) == _LINES_OF_A_WAKE:
            those = open_ones[new.queue] = WokenLines(new.queue)
            found.append(those)
        those.lines.append(id)
        those.priorities.append(new.priority)
        those.rules.append(as_json(new.line))
    return found


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def record(row: Row) -> JobRecord:
    """A job in the order of records.sql."""
    return JobRecord(
        id=row[0],
        task=row[1],
        queue=row[2],
        priority=row[3],
        stage=_STAGES[row[4]],
        lane=_LANES[row[5]],
        place=row[6],
        args_json=row[7],
        max_attempts=row[8],
        delivery=_DELIVERIES[row[9]],
        created_at=from_microseconds(row[10]),
        due_at=from_microseconds(row[11]),
        attempt=row[12],
        runs=row[13],
        crashes=row[14],
        waits=row[15],
        pool_tries=row[16],
        generation=row[17],
        edits=row[18],
        expires_at=_optional_time(row[19]),
        started_at=_optional_time(row[20]),
        finished_at=_optional_time(row[21]),
        worker=row[22],
        token=row[23],
        result_json=row[24],
        idempotency_key=row[25],
        unique_key=row[26],
        line=row[27],
        tags=tuple(row[28] or ()),
        context_json=row[29],
        error_type=row[30],
        error_message=row[31],
        cancel_requested_at=_optional_time(row[32]),
        cancel_reason=row[33],
        breaker=row[34],
    )


class _SavedRow(msgspec.Struct, omit_defaults=True):
    """A job as save.sql takes it: all that can change, after its id."""

    id: UUID
    stage: int
    lane: int
    is_placed: bool
    args: str
    attempt: int
    runs: int
    crashes: int
    waits: int
    pool_tries: int
    generation: int
    edits: int
    due_at: int
    expires_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    worker: UUID | None = None
    token: UUID | None = None
    result: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    cancel_requested_at: int | None = None
    cancel_reason: str | None = None
    breaker: str | None = None


def changed_jobs(pairs: Iterable[tuple[JobRecord, JobRecord]]) -> str:
    """Jobs as save.sql takes them."""
    return as_json([_changed(job, takes_new_place(before, job)) for before, job in pairs])


def _changed(job: JobRecord, is_placed: bool) -> _SavedRow:
    return _SavedRow(
        job.id,
        int(job.stage),
        int(job.lane),
        is_placed,
        job.args_json,
        job.attempt,
        job.runs,
        job.crashes,
        job.waits,
        job.pool_tries,
        job.generation,
        job.edits,
        to_microseconds(job.due_at),
        _optional_microseconds(job.expires_at),
        _optional_microseconds(job.started_at),
        _optional_microseconds(job.finished_at),
        job.worker,
        job.token,
        job.result_json,
        job.error_type,
        job.error_message,
        _optional_microseconds(job.cancel_requested_at),
        job.cancel_reason,
        job.breaker,
    )


def claims(found: Sequence[Row]) -> list[ClaimedJob]:
    """The jobs of claim.sql, in the order to start in."""
    ordered = sorted(found, key=_starting_order)
    return [ClaimedJob(*row[:13], _DELIVERIES[row[13]], *row[14:19]) for row in ordered]  # type: ignore[call-arg]


def claimed_before(found: Sequence[Row]) -> list[ClaimedJob]:
    """The jobs of claimed.sql, in the order to start in. In an order, priority does not count."""
    ordered = sorted(found, key=lambda row: (0 if row[21] else -row[4], row[19], row[20]))
    behind = in_trains((row[0], row[22]) for row in ordered)
    return [
        ClaimedJob(*row[:13], _DELIVERIES[row[13]], *row[14:19], row[21], behind.get(row[0]))  # type: ignore[call-arg]
        for row in ordered
    ]


def started(found: Sequence[Row], order: Sequence[UUID], behind: Mapping[UUID, UUID]) -> list[ClaimedJob]:
    """The jobs of start.sql, in the order given."""
    jobs = {
        row[0]: ClaimedJob(*row[:13], _DELIVERIES[row[13]], *row[14:20], behind.get(row[0]))  # type: ignore[call-arg]
        for row in found
    }
    return [jobs[id] for id in order]


def _starting_order(row: Row) -> tuple[int, int, int]:
    return -row[4], row[19], row[20]  # priority, lane, place


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_LINE_STATES = {int(state): state for state in LineState}
_GATE_KINDS = {int(kind): kind for kind in GateKind}
_logs = msgspec.json.Decoder(tuple[tuple[int, int], ...])


def line(row: Row) -> Line:
    return Line(row[0], row[1], row[2], tuple(row[3]), _LINE_STATES[row[4]], row[5], row[6], row[7])


def woken_of_queue(row: Row, queue: str) -> list[Line]:
    """The lines of attend.sql, which are not open yet. Where they are parked, and whether, does not count any more."""
    ways = _ways(row["woken_sizes"], row["woken_gates"])
    listed = zip(row["woken"], row["woken_priorities"], ways, row["woken_turns"], strict=True)
    return [Line(id, queue, priority, way, turn=turn) for id, priority, way, turn in listed]


def _ways(sizes: Sequence[int], gates: Sequence[UUID]) -> Iterable[tuple[UUID, ...]]:
    """Gates that were listed one line after the other, so many for each."""
    if len(sizes) == len(gates):
        return [(gate,) for gate in gates]  # mostly; a line without any gate is none
    those = iter(gates)
    return [tuple(islice(those, size)) for size in sizes]


class Look(msgspec.Struct):
    """What look_at_lines.sql answers."""

    lines: list[Line]
    gates: list[Gate]
    ready: dict[UUID, list[UUID]]
    """The jobs of each line, the next one first."""
    most: int
    """So many ready jobs were looked for in each line."""
    now: int
    """When the gates were locked."""
    has_others: bool
    """There are more open lines: too many for this look, or others are at them."""


def look(row: Row, queue: str, priority: int) -> Look:
    ids, turns, tenants, sizes, ways, *gates, numbers, jobs, most, now, has_others = row
    listed = zip(ids, _ways(sizes, ways), turns, tenants, strict=True)
    lines = [Line(id, queue, priority, way, LineState.OPEN, None, turn, tenant) for id, way, turn, tenant in listed]
    ready: list[list[UUID]] = [[] for _ in ids]
    for number, job in zip(numbers, jobs, strict=True):
        ready[number - 1].append(job)
    return Look(
        lines,
        [gate(each) for each in zip(*gates, strict=True)] if lines else [],
        dict(zip(ids, ready, strict=True)),
        most or 0,
        now,
        has_others,
    )


class Wakes(msgspec.Struct):
    """What take_wakes.sql answers."""

    has_more: bool
    """There may be more than these."""
    lines: list[Line]
    """Those that are ours now."""
    news: dict[UUID, tuple[str, int]]
    """Rules and priorities that were not known, of these, and of lines that are not there."""
    busy: dict[UUID, tuple[str | None, int | None]]
    """Lines that somebody else is at, with what was told of them: perhaps they are being forgotten."""


def wakes(row: Row, queue: str) -> Wakes:
    listed = zip(
        row["ids"],
        repeat(queue),
        row["priorities"],
        _ways(row["sizes"], row["ways"]),
        (_LINE_STATES[state] for state in row["states"]),
        row["parked_at"],
        row["turns"],
        row["tenants"],
    )
    lines = [Line(*values) for values in listed]
    heard = zip(lines, row["rules"], row["told_priorities"], strict=True)
    news = {line.id: (rule, priority) for line, rule, priority in heard if rule is not None}
    busy: dict[UUID, tuple[str | None, int | None]] = {}
    for id, is_there, priority, rule in zip(
        row["others"], row["others_there"], row["others_priorities"], row["others_rules"], strict=True
    ):
        if is_there:
            busy[id] = rule, priority
        elif rule is not None:
            news[id] = rule, priority
        # Else nobody needs it: whoever makes a line opens it as well, also if he is just doing that.
    return Wakes(row["has_more"], lines, news, busy)


def saved_lines(lines: Iterable[Line], known: Mapping[UUID, int]) -> tuple[list[Any], ...]:
    """Lines as save_traffic.sql takes them, of whose ready jobs so many are known."""
    open_ones: list[Line] = []
    parked: list[Line] = []
    closed: list[Line] = []
    of_state = {LineState.OPEN: open_ones, LineState.PARKED: parked, LineState.CLOSED: closed}
    for line in lines:
        of_state[line.state].append(line)
    return (
        [line.id for line in open_ones],
        [line.turn for line in open_ones],
        [line.id for line in parked],
        [line.turn for line in parked],
        [line.parked_at for line in parked],
        [line.id for line in closed],
        [line.turn for line in closed],
        [known.get(line.id, 0) for line in closed],
    )


def new_lines(lines: Iterable[Line], rules: Mapping[UUID, str]) -> str:
    """Lines as make_lines.sql takes them."""
    return as_json(
        [
            {
                "id": line.id,
                "queue": line.queue,
                "priority": line.priority,
                "gates": line.gates,
                "tenant": line.tenant,
                "rule": rules[line.id],
            }
            for line in lines
        ]
    )


def gate(row: Row) -> Gate:
    log = () if row[10] == "[]" else _logs.decode(row[10])
    return Gate(row[0], _GATE_KINDS[row[1]], *row[2:10], log, *row[11:14])  # type: ignore[call-arg]


def saved_gates(gates: Iterable[Gate]) -> tuple[list[Any], ...]:
    """Gates as save_traffic.sql takes them: of each kind, what can change when jobs pass."""
    of_kind: dict[GateKind, list[Gate]] = {kind: [] for kind in GateKind}
    for gate in gates:
        of_kind[gate.kind].append(gate)
    limits, orders = of_kind[GateKind.LIMIT], of_kind[GateKind.ORDER]
    rates, tenants = of_kind[GateKind.RATE], of_kind[GateKind.FAIR]
    return (
        [gate.id for gate in limits],
        [gate.held for gate in limits],
        [gate.id for gate in orders],
        [gate.holder for gate in orders],
        [gate.held for gate in orders],
        [gate.id for gate in rates],
        [as_json(gate.log) for gate in rates],
        [gate.next_at for gate in rates],
        [gate.id for gate in tenants],
        [gate.turn for gate in tenants],
    )


def saved_rules(gates: Sequence[Gate]) -> tuple[list[Any], ...]:
    """Gates as save_rules.sql takes them: what changes when the code does, or somebody says so, or lines come."""
    return (
        [gate.id for gate in gates],
        [gate.declared for gate in gates],
        [gate.override for gate in gates],
        [gate.per for gate in gates],
        [gate.is_blocking for gate in gates],
        [gate.lines for gate in gates],
    )


def new_gates(rules: Mapping[UUID, GateRule]) -> tuple[list[Any], ...]:
    """Gates as make_gates.sql takes them."""
    return (
        list(rules),
        [int(rule.kind) for rule in rules.values()],
        [rule.name for rule in rules.values()],
        [rule.key for rule in rules.values()],
        [rule.most for rule in rules.values()],
        [rule.per for rule in rules.values()],
        [rule.is_blocking for rule in rules.values()],
    )


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def keys(found: Iterable[Row]) -> dict[KeyName, KeyRecord]:
    """The keys of find_keys.sql."""
    return {
        KeyName(row[0], KeyKind(row[1]), row[2]): KeyRecord(
            row[3], row[4], _optional_time(row[5]), _optional_time(row[6])
        )
        for row in found
    }


def taken_keys(taken: Iterable[tuple[KeyName, KeyRecord]]) -> str:
    """Keys as take_keys.sql takes them."""
    return as_json(
        [
            {
                "task": name.task,
                "kind": int(name.kind),
                "key": name.key,
                "job": record.job,
                "fingerprint": None if record.fingerprint is None else f"\\x{record.fingerprint.hex()}",
                "window_until": _optional_microseconds(record.window_until),
                "expires_at": _optional_microseconds(record.expires_at),
            }
            for name, record in taken
        ]
    )


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def attempts(found: Iterable[Row]) -> list[Attempt]:
    """The history of attempts.sql."""
    return [
        Attempt(
            row[0],
            row[1],
            _optional_time(row[2]),
            from_microseconds(row[3]),
            row[4],
            Failure(FailureKind(row[5]), row[6], row[7], row[8]),
        )
        for row in found
    ]


def failures(ended: Iterable[tuple[UUID, Attempt]]) -> str:
    """Attempts as record_failures.sql takes them."""
    listed = []
    for job, attempt in ended:
        failure = attempt.failure
        assert failure is not None
        listed.append(
            {
                "job": job,
                "run": attempt.run,
                "generation": attempt.generation,
                "started_at": _optional_microseconds(attempt.started_at),
                "ended_at": _optional_microseconds(attempt.ended_at),
                "worker": attempt.worker,
                "kind": failure.kind.value,
                "error_type": failure.error_type,
                "message": failure.message,
                "traceback": failure.traceback,
            }
        )
    return as_json(listed)


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def progress_reports(reports: Iterable[ProgressReport]) -> tuple[list[Any], ...]:
    """Reports as report_progress.sql takes them: the last one of each claim."""
    last = {(report.id, report.token): report for report in reports}.values()
    return (
        [report.id for report in last],
        [report.token for report in last],
        [report.done for report in last],
        [report.total for report in last],
        [report.note for report in last],
    )


def progress(found: Iterable[Row]) -> dict[UUID, Progress]:
    """What progress.sql answers."""
    return {row[0]: Progress(row[1], row[2], row[3], from_microseconds(row[4])) for row in found}


# ── queues, workers, tasks ───────────────────────────────────────────────────────────────────────────────────────────


def queue(row: Row) -> QueueRecord:
    return QueueRecord(row[0], row[1], row[2], row[3], row[4], row[5], _optional_time(row[6]))


def worker(row: Row) -> WorkerRecord:
    return WorkerRecord(
        row[0],
        row[1],
        row[2],
        row[3],
        tuple(row[4]),
        from_microseconds(row[5]),
        from_microseconds(row[6]),
        row[7],
        _optional_time(row[8]),
        row[9],
        row[10],
        tuple(row[11]),
    )


_definitions = msgspec.json.Decoder(TaskDefinition)


def task(row: Row) -> PublishedTask:
    return PublishedTask(_definitions.decode(row[0]), row[1], from_microseconds(row[2]))
