"""Schedules in a SQLite file. All that the verbs write in one transaction, in the writer's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from holdfast import schedule
from holdfast.job import Stage, state_of
from holdfast.moment import from_microseconds, to_microseconds
from holdfast.schedule import REMEMBERED_TICKS, Fired, Firing, Overlap, Plan, ScheduleRecord, TickRecord
from holdfast.store import DueSchedules, HintKind, ScheduleChange
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.rows import Row
from holdfast.stores.sqlite.statements import chunks, statement
from holdfast.stores.sqlite.transaction import Transaction

_records = msgspec.json.Decoder(list[ScheduleRecord])
_ticks = msgspec.json.Decoder(list[tuple[int, UUID, Stage | None, int | None]])


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def declare(it: Transaction, plans: Mapping[str, Plan], code_age: timedelta | None) -> None:
    there = _load(it, list(plans))
    code_from = it.now - (code_age or timedelta(0))
    after = {name: schedule.declare(there.get(name), name, plan, code_from, it.now) for name, plan in plans.items()}
    _save(it, [record for name, record in after.items() if record is not there.get(name)])


def change(it: Transaction, name: str, make: ScheduleChange) -> ScheduleRecord | None:
    before = _load(it, [name]).get(name)
    after = make(before, it.now)
    if after is None:
        it.change("forget_schedule", (name,))
        it.change("forget_ticks", (name,))
    elif after is not before:
        _save(it, [after])
    return after


def fire(it: Transaction, firings: Sequence[Firing]) -> list[Fired]:
    there = _load(it, [firing.schedule for firing in firings])
    answers: list[Fired] = []
    for firing in firings:
        record = there.get(firing.schedule)
        if record is None or not schedule.stands(record, firing):
            answers.append(Fired.LATE)
            continue
        made = _make_jobs(it, record, firing)
        there[firing.schedule] = after = schedule.move_on(record, firing, made)
        it.change_many("save_schedules", [_row(after)])
        answers.append(Fired.SKIPPED if made is None else Fired.FIRED)
    return answers


def _make_jobs(it: Transaction, record: ScheduleRecord, firing: Firing) -> dict[datetime, UUID] | None:
    """The jobs of its ticks; None if there is an unfinished one that forbids it."""
    if not firing.jobs:
        return {}
    it.flush()
    if record.plan.overlap is Overlap.SKIP and it.execute("has_unfinished_tick", (record.name,)):
        return None
    # A job that is there under the id of a tick is its job, whatever has become of the schedule since.
    there = it.load([new.id for new in firing.jobs])
    fresh = [new for new in firing.jobs if new.id not in there]
    found = {new.id: answer.id for new, answer in zip(fresh, it.enqueue(fresh), strict=True)}
    made = {tick: found.get(new.id, new.id) for tick, new in zip(firing.passage.ticks, firing.jobs, strict=True)}
    it.change_many("record_ticks", [(record.name, to_microseconds(tick), id.bytes) for tick, id in made.items()])
    it.change("trim_ticks", (record.name, REMEMBERED_TICKS))
    return made


def _load(it: Transaction, names: Sequence[str]) -> dict[str, ScheduleRecord]:
    found: dict[str, ScheduleRecord] = {}
    for chunk in chunks(names):
        found |= {record.name: record for record in _records.decode(it.answer("schedules_by_name", chunk, len(chunk)))}
    return found


def _save(it: Transaction, records: Sequence[ScheduleRecord]) -> None:
    if records:
        it.change_many("save_schedules", [_row(record) for record in records])
        it.hint(HintKind.SCHEDULES)


def _row(record: ScheduleRecord) -> Row:
    next_tick, orphaned_at = record.next_tick, record.orphaned_at
    return (
        record.name,
        None if next_tick is None else to_microseconds(next_tick),
        None if orphaned_at is None else to_microseconds(orphaned_at),
        msgspec.json.encode(record).decode(),
    )


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def schedules(connection: Connection, names: Sequence[str] | None) -> list[ScheduleRecord]:
    if names is None:
        ((text,),) = connection.execute(statement("schedules"))
        return _records.decode(text)
    found: list[ScheduleRecord] = []
    for chunk in chunks(sorted(set(names))):
        ((text,),) = connection.execute(statement("schedules_by_name", len(chunk)), chunk)
        found += _records.decode(text)
    return found


def due(connection: Connection, limit: int, now: datetime) -> DueSchedules:
    ((text, next_tick),) = connection.execute(statement("due_schedules"), (to_microseconds(now), limit))
    next_in = None if next_tick is None else max(from_microseconds(next_tick) - now, timedelta(0))
    return DueSchedules(now, _records.decode(text), next_in)


def ticks(connection: Connection, name: str, limit: int) -> list[TickRecord]:
    ((text,),) = connection.execute(statement("ticks"), (name, limit))
    return [
        TickRecord(from_microseconds(tick), job, None if stage is None else state_of(stage, attempt or 0))
        for tick, job, stage, attempt in _ticks.decode(text)
    ]
