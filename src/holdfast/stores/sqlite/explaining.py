"""Why jobs wait, and for which limits, in a SQLite file: each answer is as of one commit."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from holdfast.gates import Gate, GateKind, GateRule, is_train
from holdfast.job import JobRecord, Stage
from holdfast.limits import LimitRecord, limit_record
from holdfast.moment import from_microseconds, to_microseconds
from holdfast.store import MOST_AHEAD, MOST_WAITING, Circumstances
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.statements import records_statement, statement
from holdfast.stores.sqlite.transaction import Transaction
from holdfast.turns import Line


def limits(
    connection: Connection, name: str | None, kind: GateKind | None, key: str | None, limit: int, now: datetime
) -> list[LimitRecord]:
    given = name, None if kind is None else int(kind), key, limit, MOST_WAITING, to_microseconds(now)
    return _limit_records(connection.execute(statement("limits"), given), now)


def override(it: Transaction, rule: GateRule, most: int | None, *, makes: bool) -> LimitRecord | None:
    if not it.override_gate(rule, most, makes=makes):
        return None
    given = rule.name, int(rule.kind), rule.key, 1, MOST_WAITING, it.microseconds
    (record,) = _limit_records(it.execute("limits", given), it.now)
    return record


def _limit_records(found: list[rows.Row], now: datetime) -> list[LimitRecord]:
    ((gates, waiting),) = found
    return [
        limit_record(gate, number, now)
        for gate, number in zip(rows.read_shown_gates(gates), rows.read_numbers(waiting), strict=True)
    ]


def circumstances(connection: Connection, id: UUID, now: datetime) -> Circumstances | None:
    connection.execute("begin")  # so that all statements see the same commit
    try:
        return _gather(connection, id, now)
    finally:
        connection.roll_back()


def _gather(connection: Connection, id: UUID, now: datetime) -> Circumstances | None:
    found = _job(connection, id)
    if not found:
        return None
    (job,) = found
    line = _line(connection, job)
    gates = [] if line is None else [gate for id in line.gates for gate in _gates(connection, id, line.id)]
    holders = [holder for gate in gates for holder in _job(connection, gate.holder)]
    queue = connection.execute(statement("queue"), (job.queue,))
    published = rows.read_tasks(_answer(connection, statement("task_called"), job.task))
    return Circumstances(
        now=now,
        job=job,
        paused_at=None if queue[0][6] is None else from_microseconds(queue[0][6]),
        ahead=_ahead(connection, job, now) if job.stage is Stage.READY else 0,
        lines_ahead=_lines_ahead(connection, job, line, now) if job.stage is Stage.READY else 0,
        line=line,
        gates=tuple(gates),
        holders={holder.id: holder.state for holder in holders},
        workers=tuple(rows.read_workers(_answer(connection, statement("workers_of"), job.worker and job.worker.bytes))),
        task=published[0] if published else None,
        progress=rows.read_progress(connection.execute(statement("progress"), (id.bytes,))).get(id),
    )


def _job(connection: Connection, id: UUID | None) -> list[JobRecord]:
    return rows.read_records(_answer(connection, records_statement("select_by_id"), id and id.bytes))


def _line(connection: Connection, job: JobRecord) -> Line | None:
    if job.line is None:
        return None
    found = rows.read_shown_lines(_answer(connection, statement("shown_line"), job.line.bytes))
    return found[0] if found else None


def _gates(connection: Connection, id: UUID, line: UUID) -> list[Gate]:
    gates = rows.read_shown_gates(_answer(connection, statement("shown_gate"), id.bytes))
    return [replace(gate, holder=_first_at_work(connection, line)) if is_train(gate) else gate for gate in gates]


def _first_at_work(connection: Connection, line: UUID) -> UUID | None:
    found = connection.execute(statement("first_at_work"), (line.bytes,))
    return UUID(bytes=found[0][0]) if found else None


def _ahead(connection: Connection, job: JobRecord, now: datetime) -> int:
    moment = to_microseconds(now)
    lane = int(job.lane)
    if job.line is not None:
        return _number(connection, "ahead_in_line", job.line.bytes, lane, job.place, moment, MOST_AHEAD)
    return _number(connection, "ahead", job.queue, job.priority, lane, job.place, moment, MOST_AHEAD)


def _lines_ahead(connection: Connection, job: JobRecord, line: Line | None, now: datetime) -> int:
    place = (job.priority, None, None) if line is None else (line.priority, line.turn, line.id.bytes)
    return _number(connection, "lines_ahead", job.queue, *place, to_microseconds(now), MOST_AHEAD)


def _answer(connection: Connection, sql: str, *values: Any) -> str:
    ((text,),) = connection.execute(sql, values)
    return str(text)


def _number(connection: Connection, name: str, *values: Any) -> int:
    ((number,),) = connection.execute(statement(name), values)
    return int(number)
