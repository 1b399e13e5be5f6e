"""Between rows of PostgreSQL and values of the domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.gates import Gate, GateKind, GateRule, LineRule
from holdfast.job import Attempt, ClaimedJob, Delivery, Failure, FailureKind, JobRecord, Lane, NewJob, Stage
from holdfast.keys import KeyKind, KeyName, KeyRecord
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
from holdfast.store import Progress, ProgressReport, PublishedTask, QueueRecord, TaskDefinition, WorkerRecord
from holdfast.turns import Line, LineState

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


def woken_lines(jobs: Sequence[NewJob]) -> list[dict[str, Any]]:
    """The lines of new jobs as holdfast.enqueue takes them, each once, with the rules that its jobs are under."""
    found: dict[tuple[LineRule, str, int], dict[str, Any]] = {}
    for new in jobs:
        if new.line is not None and (place := (new.line, new.queue, new.priority)) not in found:
            found[place] = {
                "queue": new.queue,
                "line": new.line.id_for(new.queue, new.priority),
                "priority": new.priority,
                "rule": as_json(new.line),
            }
    return list(found.values())


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


def changed_jobs(pairs: Iterable[tuple[JobRecord, JobRecord]]) -> str:
    """Jobs as save.sql takes them. Those that become ready get a new place."""
    return as_json(
        [_changed(job, job.stage is Stage.READY and before.stage is not Stage.READY) for before, job in pairs]
    )


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
    )


def claims(found: Sequence[Row]) -> list[ClaimedJob]:
    """The jobs of claim.sql, in the order to start in."""
    ordered = sorted(found, key=_starting_order)
    return [ClaimedJob(*row[:13], _DELIVERIES[row[13]], *row[14:19]) for row in ordered]  # type: ignore[call-arg]


def claimed_before(found: Sequence[Row]) -> list[ClaimedJob]:
    """The jobs of claimed.sql, in the order to start in."""
    ordered = sorted(found, key=_starting_order)
    return [ClaimedJob(*row[:13], _DELIVERIES[row[13]], *row[14:19], row[21]) for row in ordered]  # type: ignore[call-arg]


def started(found: Sequence[Row], order: Sequence[UUID]) -> list[ClaimedJob]:
    """The jobs of start.sql, in the order given."""
    jobs = {row[0]: ClaimedJob(*row[:13], _DELIVERIES[row[13]], *row[14:20]) for row in found}  # type: ignore[call-arg]
    return [jobs[id] for id in order]


def _starting_order(row: Row) -> tuple[int, int, int]:
    return -row[4], row[19], row[20]  # priority, lane, place


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_LINE_STATES = {int(state): state for state in LineState}
_GATE_KINDS = {int(kind): kind for kind in GateKind}
_logs = msgspec.json.Decoder(tuple[tuple[int, int], ...])


def line(row: Row) -> Line:
    return Line(row[0], row[1], row[2], tuple(row[3]), _LINE_STATES[row[4]], row[5], row[6], row[7])


class Look(msgspec.Struct):
    """What look_at_lines.sql answers: lines, their gates, and pairs of a line and a ready job of it."""

    lines: list[Line]
    gates: list[Gate]
    ready: list[tuple[UUID, UUID]]
    most: int | None
    """So many ready jobs were looked for in each line."""
    has_others: bool
    """There are more open lines: too many for this look, or others are at them."""


class Wake(msgspec.Struct, array_like=True):
    """Jobs have become ready in a line; if they have just come, with all that is needed to make it."""

    line: UUID
    priority: int | None
    rule: str | None


_looks = msgspec.json.Decoder(Look)
_line_lists = msgspec.json.Decoder(list[Line])
_wake_lists = msgspec.json.Decoder(list[Wake])


def read_lines(text: str) -> list[Line]:
    return _line_lists.decode(text)


def read_wakes(text: str) -> list[Wake]:
    return _wake_lists.decode(text)


def read_look(text: str) -> Look:
    return _looks.decode(text)


def saved_lines(lines: Sequence[Line]) -> tuple[list[Any], ...]:
    """Lines as save_lines.sql takes them."""
    return (
        [line.id for line in lines],
        [int(line.state) for line in lines],
        [line.parked_at for line in lines],
        [line.turn for line in lines],
    )


def new_lines(lines: Iterable[Line]) -> str:
    """Lines as make_lines.sql takes them."""
    return as_json(
        [
            {
                "id": line.id,
                "queue": line.queue,
                "priority": line.priority,
                "gates": line.gates,
                "tenant": line.tenant,
            }
            for line in lines
        ]
    )


def gate(row: Row) -> Gate:
    return Gate(row[0], _GATE_KINDS[row[1]], *row[2:10], _logs.decode(row[10]), *row[11:14])  # type: ignore[call-arg]


def saved_gates(gates: Sequence[Gate]) -> tuple[list[Any], ...]:
    """Gates as save_gates.sql takes them."""
    return (
        [gate.id for gate in gates],
        [gate.declared for gate in gates],
        [gate.override for gate in gates],
        [gate.per for gate in gates],
        [gate.is_blocking for gate in gates],
        [gate.held for gate in gates],
        [gate.holder for gate in gates],
        [as_json(gate.log) for gate in gates],
        [gate.next_at for gate in gates],
        [gate.turn for gate in gates],
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
