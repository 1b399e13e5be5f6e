"""Schedules in PostgreSQL: what the verbs do in one transaction, with the rows of the schedules locked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from holdfast import schedule
from holdfast.errors import HoldfastError
from holdfast.job import NewJob, Stage, state_of
from holdfast.moment import from_microseconds, to_microseconds
from holdfast.schedule import REMEMBERED_TICKS, Fired, Firing, Overlap, Plan, ScheduleRecord, TickRecord
from holdfast.store import DueSchedules, HintKind, ScheduleChange
from holdfast.stores.postgres.connection import Record
from holdfast.stores.postgres.request import Options, Request
from holdfast.stores.postgres.transaction import Transaction

_KEY_PATIENCE: Final = 250
"""Milliseconds to wait for a transaction that uses the key of a unique job."""
_record = msgspec.json.Decoder(ScheduleRecord)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def declare(it: Transaction, plans: Mapping[str, Plan], code_age: timedelta | None) -> None:
    now = await _arrange(it)
    there = await _lock(it, list(plans))
    code_from = now - (code_age or timedelta(0))
    after = {name: schedule.declare(there.get(name), name, plan, code_from, now) for name, plan in plans.items()}
    changed = [record for name, record in after.items() if record is not there.get(name)]
    if changed:
        await _save(it, changed)
        it.hint(HintKind.SCHEDULES)


async def change(it: Transaction, name: str, make: ScheduleChange) -> ScheduleRecord | None:
    now = await _arrange(it)
    before = (await _lock(it, [name])).get(name)
    after = make(before, now)
    if after is None:
        await it.fetch("forget_schedule", name)
    elif after is not before:
        await _save(it, [after])
    it.hint(HintKind.SCHEDULES)
    return after


async def fire(it: Transaction, firings: Sequence[Firing]) -> list[Fired]:
    there = await _lock(it, [firing.schedule for firing in firings])
    standing: dict[str, Firing] = {}
    for firing in firings:
        if firing.schedule not in standing and schedule.stands(there.get(firing.schedule), firing):
            standing[firing.schedule] = firing
    if not standing:
        return [Fired.LATE] * len(firings)
    busy = await _busy(it, [there[name] for name, firing in standing.items() if firing.jobs])
    made = await _make_jobs(it, [firing for name, firing in standing.items() if name not in busy])
    await _save(it, [schedule.move_on(there[name], firing, made.get(name)) for name, firing in standing.items()])
    return [
        Fired.LATE
        if standing.get(firing.schedule) is not firing
        else Fired.SKIPPED
        if firing.schedule in busy
        else Fired.FIRED
        for firing in firings
    ]


async def _busy(it: Transaction, records: Iterable[ScheduleRecord]) -> set[str]:
    """Those that must not fire because of an unfinished job."""
    asked = [record.name for record in records if record.plan.overlap is Overlap.SKIP]
    return {row["name"] for row in await it.fetch("unfinished_ticks", asked)} if asked else set()


async def _make_jobs(it: Transaction, firings: Sequence[Firing]) -> dict[str, dict[datetime, UUID]]:
    """The jobs of these firings, by schedule and tick."""
    jobs = [new for firing in firings for new in firing.jobs]
    found = await _enqueue(it, jobs) if jobs else {}
    made = {
        firing.schedule: {tick: found[new.id] for tick, new in zip(firing.passage.ticks, firing.jobs, strict=True)}
        for firing in firings
    }
    rows = [(name, to_microseconds(tick), job) for name, ticks in made.items() for tick, job in ticks.items()]
    if rows:
        await it.fetch("record_ticks", *map(list, zip(*rows, strict=True)))
        await it.fetch("trim_ticks", sorted(made), REMEMBERED_TICKS)
    return made


async def _enqueue(it: Transaction, jobs: Sequence[NewJob]) -> dict[UUID, UUID]:
    """Insert jobs that no bound refuses, or find them: the id of each leads to that of the job that there is."""
    # A job that is there under the id of a tick is its job, whatever has become of the schedule since.
    known = {row["id"] for row in await it.fetch("known_jobs", [new.id for new in jobs])}
    fresh = [new for new in jobs if new.id not in known]
    found = {new.id: new.id for new in jobs}
    if not fresh:
        return found
    request = Request([fresh])
    options = Options(now=it.given_now, is_admitted=True, lock_timeout=_KEY_PATIENCE)
    ((answer,),) = await it.fetch("enqueue", request.jobs(), request.options(options))
    (answers,) = request.read(answer).calls
    if isinstance(answers, HoldfastError):
        raise answers
    await it.fetch("know_queues", sorted({new.queue for new in fresh}))
    for kind, queues in (
        (HintKind.WORK, {new.queue for new in fresh if new.delay is None}),
        (HintKind.LATER, {new.queue for new in fresh if new.delay is not None}),
    ):
        if queues:
            it.hint(kind, queues)
    return found | {new.id: answer.id for new, answer in zip(fresh, answers, strict=True)}


async def _arrange(it: Transaction) -> datetime:
    ((now,),) = await it.fetch("arrange_schedules", it.given_now)
    return from_microseconds(now)


async def _lock(it: Transaction, names: Sequence[str]) -> dict[str, ScheduleRecord]:
    return {record.name: record for record in records(await it.fetch("lock_schedules", sorted(set(names))))}


async def _save(it: Transaction, changed: Sequence[ScheduleRecord]) -> None:
    await it.fetch(
        "save_schedules",
        [record.name for record in changed],
        [_microseconds(record.next_tick) for record in changed],
        [_microseconds(record.orphaned_at) for record in changed],
        [msgspec.json.encode(record).decode() for record in changed],
    )


def _microseconds(time: datetime | None) -> int | None:
    return None if time is None else to_microseconds(time)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def records(rows: Iterable[Record]) -> list[ScheduleRecord]:
    return [_record.decode(row["record"]) for row in rows]


def due(row: Record) -> DueSchedules:
    now = from_microseconds(row["now"])
    next_tick = row["next_tick"]
    next_in = None if next_tick is None else max(from_microseconds(next_tick) - now, timedelta(0))
    return DueSchedules(now, [_record.decode(text) for text in row["records"]], next_in)


def ticks(rows: Iterable[Record]) -> list[TickRecord]:
    return [
        TickRecord(
            from_microseconds(row["tick"]),
            row["job"],
            None if row["stage"] is None else state_of(Stage(row["stage"]), row["attempt"]),
        )
        for row in rows
    ]
