"""Between rows of SQLite and values of the domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.gates import Gate
from holdfast.job import Attempt, ClaimedJob, Delivery, Failure, FailureKind, JobRecord, Lane, NewJob, Stage
from holdfast.keys import KeyKind, KeyName, KeyRecord
from holdfast.moment import MICROSECOND, from_microseconds, to_microseconds
from holdfast.store import Progress, ProgressReport, PublishedTask, QueueRecord, TaskDefinition, WorkerRecord
from holdfast.turns import Line

_DELIVERIES = (Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE, Delivery.TRANSACTIONAL)
_DELIVERY_CODES = {delivery: code for code, delivery in enumerate(_DELIVERIES)}
_USUAL: Final = Delivery.AT_LEAST_ONCE
_READY = int(Stage.READY)
_SCHEDULED = int(Stage.SCHEDULED)

Row = tuple[Any, ...]


def _optional_time(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_microseconds(microseconds)


def _optional_microseconds(time: datetime | None) -> int | None:
    return None if time is None else to_microseconds(time)


def _optional_bytes(id: UUID | None) -> bytes | None:
    return None if id is None else id.bytes


def _optional_id(text: str) -> UUID | None:
    return UUID(text) if text else None  # hex(null) is an empty text


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def new_row(new: NewJob, now: int, place: int, line: int | None = None) -> Row:
    """A new job as enqueue.sql takes it. One that is due later gets another place when its time has come."""
    due_at, expires_at = now, None
    if new.at is not None:
        due_at = max(to_microseconds(new.at), now)
    elif new.delay is not None:
        due_at = now + new.delay // MICROSECOND
    if new.expires_in is not None:
        expires_at = due_at + new.expires_in // MICROSECOND
    elif new.expires_at is not None:
        expires_at = to_microseconds(new.expires_at)
    return (
        new.id.bytes,
        new.task,
        new.queue,
        new.priority,
        _READY if due_at == now else _SCHEDULED,
        place,
        new.args_json,
        new.max_attempts,
        0 if new.delivery is _USUAL else _DELIVERY_CODES[new.delivery],  # looking up an enum takes long
        now,
        due_at,
        expires_at,
        new.idempotency_key,
        new.unique_key,
        line,
        msgspec.json.encode(new.tags).decode() if new.tags else None,
        new.context_json,
    )


class _JobRow(msgspec.Struct, array_like=True, gc=False):
    id: UUID
    task: str
    queue: str
    priority: int
    stage: Stage
    lane: Lane
    place: int
    args: str
    max_attempts: int
    delivery: int
    created_at: int
    due_at: int
    attempt: int
    runs: int
    crashes: int
    waits: int
    pool_tries: int
    generation: int
    edits: int
    expires_at: int | None
    started_at: int | None
    finished_at: int | None
    worker: str
    token: str
    result: str | None
    idempotency_key: str | None
    unique_key: str | None
    line: str
    tags: str | None
    context: str | None
    error_type: str | None
    error_message: str | None
    cancel_requested_at: int | None
    cancel_reason: str | None
    breaker: str | None


_job_rows = msgspec.json.Decoder(list[_JobRow])
_tags = msgspec.json.Decoder(tuple[str, ...])


def read_records(text: str) -> list[JobRecord]:
    """The jobs in the JSON of records.sql."""
    return [_record(row) for row in _job_rows.decode(text)]


def _record(row: _JobRow) -> JobRecord:
    return JobRecord(
        id=row.id,
        task=row.task,
        queue=row.queue,
        priority=row.priority,
        stage=row.stage,
        lane=row.lane,
        place=row.place,
        args_json=row.args,
        max_attempts=row.max_attempts,
        delivery=_DELIVERIES[row.delivery],
        created_at=from_microseconds(row.created_at),
        due_at=from_microseconds(row.due_at),
        attempt=row.attempt,
        runs=row.runs,
        crashes=row.crashes,
        waits=row.waits,
        pool_tries=row.pool_tries,
        generation=row.generation,
        edits=row.edits,
        expires_at=_optional_time(row.expires_at),
        started_at=_optional_time(row.started_at),
        finished_at=_optional_time(row.finished_at),
        worker=_optional_id(row.worker),
        token=_optional_id(row.token),
        result_json=row.result,
        idempotency_key=row.idempotency_key,
        unique_key=row.unique_key,
        line=_optional_id(row.line),
        tags=_tags.decode(row.tags) if row.tags else (),
        context_json=row.context,
        error_type=row.error_type,
        error_message=row.error_message,
        cancel_requested_at=_optional_time(row.cancel_requested_at),
        cancel_reason=row.cancel_reason,
        breaker=row.breaker,
    )


def changed_row(job: JobRecord) -> Row:
    """A job as save.sql takes it: all that can change, after its id."""
    return (
        job.id.bytes,
        int(job.stage),
        int(job.lane),
        job.place,
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
        _optional_bytes(job.worker),
        _optional_bytes(job.token),
        job.result_json,
        job.error_type,
        job.error_message,
        _optional_microseconds(job.cancel_requested_at),
        job.cancel_reason,
        job.breaker,
    )


_claims = msgspec.json.Decoder(list[ClaimedJob])


def read_claims(text: str) -> list[ClaimedJob]:
    """The jobs in the JSON of claim.sql."""
    return _claims.decode(text)


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


_lines = msgspec.json.Decoder(list[Line[int]])
_groups_of_lines = msgspec.json.Decoder(list[list[Line[int]]])
_lines_by_id = msgspec.json.Decoder(list[tuple[UUID, Line[int]]])
_shown_lines = msgspec.json.Decoder(list[Line[UUID]])
# Not strict, since SQLite has numbers for what is true or false.
_gates = msgspec.json.Decoder(list[Gate[int]], strict=False)
_gates_by_id = msgspec.json.Decoder(list[tuple[UUID, Gate[int]]], strict=False)
_shown_gates = msgspec.json.Decoder(list[Gate[UUID]], strict=False)


def read_lines(text: str) -> list[Line[int]]:
    return _lines.decode(text)


def read_groups_of_lines(text: str) -> list[list[Line[int]]]:
    return _groups_of_lines.decode(text)


def read_lines_by_id(text: str) -> dict[UUID, Line[int]]:
    return dict(_lines_by_id.decode(text))


def read_shown_lines(text: str) -> list[Line[UUID]]:
    """Lines and gates with ids instead of numbers, for whoever looks at them from outside."""
    return _shown_lines.decode(text)


def new_line(line: Line[UUID], gates: Mapping[UUID, int]) -> Row:
    """A line as make_lines.sql takes it."""
    tenant = None if line.tenant is None else gates[line.tenant]
    numbers = write_numbers([gates[id] for id in line.gates])
    return line.id.bytes, line.queue, line.priority, numbers, int(line.state), None, line.turn, tenant


def moved_line(line: Line[int]) -> Row:
    """A line as save_lines.sql takes it."""
    return line.id, line.priority, line.state, line.parked_at, line.turn


def read_gates(text: str) -> list[Gate[int]]:
    return _gates.decode(text)


def read_gates_by_id(text: str) -> dict[UUID, Gate[int]]:
    return dict(_gates_by_id.decode(text))


def read_shown_gates(text: str) -> list[Gate[UUID]]:
    return _shown_gates.decode(text)


def used_gate(gate: Gate[int]) -> Row:
    """A gate as save_gates.sql takes it."""
    return gate.id, gate.held, gate.holder, _log(gate), gate.next_at, gate.turn


def declared_gate(gate: Gate[int]) -> Row:
    """A gate as declare_gates.sql takes it."""
    return *used_gate(gate), gate.declared, gate.override, gate.per, gate.is_blocking, gate.lines


def new_gate(gate: Gate[UUID]) -> Row:
    """A gate that nobody has been through, as make_gates.sql takes it."""
    return (
        gate.id.bytes,
        int(gate.kind),
        gate.name,
        gate.key,
        gate.declared,
        gate.override,
        gate.per,
        gate.is_blocking,
        gate.held,
        None,
        _log(gate),
        gate.next_at,
        gate.turn,
        gate.lines,
    )


def _log(gate: Gate[Any]) -> str:
    return msgspec.json.encode(gate.log).decode() if gate.log else "[]"


_numbers = msgspec.json.Decoder(list[int])
_lines_of_jobs = msgspec.json.Decoder(list[int | None])


def read_numbers(text: str) -> list[int]:
    return _numbers.decode(text)


def read_lines_of_jobs(text: str) -> list[int | None]:
    return _lines_of_jobs.decode(text)


def write_numbers(numbers: Iterable[int]) -> str:
    return msgspec.json.encode(list(numbers)).decode()


_groups_of_numbers = msgspec.json.Decoder(list[list[int]])
_pairs = msgspec.json.Decoder(list[tuple[int, int]])
_places_by_id = msgspec.json.Decoder(list[tuple[UUID, int, int]])


def read_groups_of_numbers(text: str) -> list[list[int]]:
    return _groups_of_numbers.decode(text)


def read_pairs(text: str) -> list[tuple[int, int]]:
    return _pairs.decode(text)


def read_places_by_id(text: str) -> dict[UUID, tuple[int, int]]:
    """Jobs in lines: their numbers, and those of their lines."""
    return {id: (job, line) for id, job, line in _places_by_id.decode(text)}


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _KeyRow(msgspec.Struct, array_like=True):
    task: str
    kind: int
    key: str
    job: UUID
    fingerprint: str
    window_until: int | None
    expires_at: int | None


_key_rows = msgspec.json.Decoder(list[_KeyRow])


def read_keys(text: str) -> dict[KeyName, KeyRecord]:
    return {
        KeyName(row.task, KeyKind(row.kind), row.key): KeyRecord(
            row.job,
            bytes.fromhex(row.fingerprint) or None,
            _optional_time(row.window_until),
            _optional_time(row.expires_at),
        )
        for row in _key_rows.decode(text)
    }


def key_row(name: KeyName, record: KeyRecord) -> Row:
    return (
        name.task,
        int(name.kind),
        name.key,
        record.job.bytes,
        record.fingerprint,
        _optional_microseconds(record.window_until),
        _optional_microseconds(record.expires_at),
    )


# ── attempts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _FailureRow(msgspec.Struct, array_like=True):
    run: int
    generation: int
    started_at: int | None
    ended_at: int
    worker: str
    kind: FailureKind
    error_type: str
    message: str
    traceback: str | None


_failure_rows = msgspec.json.Decoder(list[_FailureRow])


def read_attempts(text: str) -> list[Attempt]:
    return [
        Attempt(
            row.run,
            row.generation,
            _optional_time(row.started_at),
            from_microseconds(row.ended_at),
            _optional_id(row.worker),
            Failure(row.kind, row.error_type, row.message, row.traceback),
        )
        for row in _failure_rows.decode(text)
    ]


def failure_row(id: UUID, attempt: Attempt) -> Row:
    failure = attempt.failure
    assert failure is not None
    return (
        id.bytes,
        attempt.run,
        attempt.generation,
        _optional_microseconds(attempt.started_at),
        _optional_microseconds(attempt.ended_at),
        _optional_bytes(attempt.worker),
        failure.kind.value,
        failure.error_type,
        failure.message,
        failure.traceback,
    )


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def progress_row(report: ProgressReport) -> Row:
    return report.id.bytes, report.token.bytes, report.done, report.total, report.note


def read_progress(found: Iterable[Row]) -> dict[UUID, Progress]:
    return {UUID(bytes=job): Progress(done, total, note, from_microseconds(at)) for job, done, total, note, at in found}


# ── queues, workers, tasks ───────────────────────────────────────────────────────────────────────────────────────────


class _QueueRow(msgspec.Struct, array_like=True):
    name: str
    waiting: int
    scheduled: int
    last_place: int
    declared_bound: int
    override_bound: int | None
    scheduled_bound: int
    paused_at: int | None


_queue_rows = msgspec.json.Decoder(list[_QueueRow])


def read_queues(text: str) -> list[QueueRecord]:
    return [
        QueueRecord(
            row.name,
            row.waiting,
            row.scheduled,
            row.declared_bound,
            row.override_bound,
            row.scheduled_bound,
            _optional_time(row.paused_at),
        )
        for row in _queue_rows.decode(text)
    ]


class _WorkerRow(msgspec.Struct, array_like=True):
    id: UUID
    name: str
    host: str
    pid: int
    queues: str
    started_at: int
    beat_at: int
    beat: int
    dead_at: int | None
    active: int
    is_quiet: bool
    tasks: str


_worker_rows = msgspec.json.Decoder(list[_WorkerRow])


def read_workers(text: str) -> list[WorkerRecord]:
    return [
        WorkerRecord(
            row.id,
            row.name,
            row.host,
            row.pid,
            _tags.decode(row.queues),
            from_microseconds(row.started_at),
            from_microseconds(row.beat_at),
            row.beat,
            _optional_time(row.dead_at),
            row.active,
            row.is_quiet,
            _tags.decode(row.tasks),
        )
        for row in _worker_rows.decode(text)
    ]


class _TaskRow(msgspec.Struct, array_like=True):
    definition: str
    revision: int
    published_at: int


_task_rows = msgspec.json.Decoder(list[_TaskRow])
_definitions = msgspec.json.Decoder(TaskDefinition)


def read_tasks(text: str) -> list[PublishedTask]:
    return [
        PublishedTask(_definitions.decode(row.definition), row.revision, from_microseconds(row.published_at))
        for row in _task_rows.decode(text)
    ]


_ids = msgspec.json.Decoder(list[UUID])
_numbered_ids = msgspec.json.Decoder(list[tuple[int, UUID]])


def read_ids(text: str) -> list[UUID]:
    return _ids.decode(text)


def read_numbered_ids(text: str) -> list[tuple[int, UUID]]:
    """Ids with their row numbers."""
    return _numbered_ids.decode(text)
