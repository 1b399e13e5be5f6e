"""Stores that break one promise about schedules each, and the contract test that must notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast.job import NewJob
from holdfast.schedule import Fired, Firing, Overlap, Plan, ScheduleRecord
from holdfast.store import DueSchedules, Enqueued, ScheduleChange
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory_schedules import MemorySchedules
from tests.contract.test_mutants import Mutant, run_contract_test


class FireIgnoresWhereItStands(MemorySchedules):
    def fire(self, firing: Firing) -> Fired:
        record = self._records.get(firing.schedule)
        if record is None:
            return Fired.LATE
        self._records[firing.schedule] = replace(record, next_tick=firing.tick, revision=firing.revision)
        answer = super().fire(firing)
        self._records[firing.schedule] = replace(self._records[firing.schedule], revision=record.revision)
        return answer


class FireIgnoresTheRevision(MemorySchedules):
    def fire(self, firing: Firing) -> Fired:
        record = self._records.get(firing.schedule)
        return super().fire(firing if record is None else replace(firing, revision=record.revision))


class FireStaysWhereItIs(MemorySchedules):
    def fire(self, firing: Firing) -> Fired:
        before = self._records.get(firing.schedule)
        answer = super().fire(firing)
        if before is not None:
            self._records[firing.schedule] = replace(self._records[firing.schedule], next_tick=before.next_tick)
        return answer


class FireIgnoresOverlap(MemorySchedules):
    def _has_unfinished(self, ticks: Mapping[datetime, UUID]) -> bool:
        return False


class FireLooksAtTheLastJobOnly(MemorySchedules):
    def _has_unfinished(self, ticks: Mapping[datetime, UUID]) -> bool:
        return super()._has_unfinished({tick: ticks[tick] for tick in sorted(ticks)[-1:]})


class FireAlwaysSkipsOverlap(MemorySchedules):
    def fire(self, firing: Firing) -> Fired:
        with self._as_if(firing.schedule, Overlap.SKIP):
            return super().fire(firing)

    @contextmanager
    def _as_if(self, name: str, overlap: Overlap) -> Iterator[None]:
        record = self._records.get(name)
        if record is None or record.override is None:
            yield
            return
        self._records[name] = replace(record, override=replace(record.override, overlap=overlap))
        yield
        self._records[name] = replace(self._records[name], override=record.override)


class TicksAreForgotten(MemorySchedules):
    def fire(self, firing: Firing) -> Fired:
        answer = super().fire(firing)
        self._ticks[firing.schedule] = {}
        return answer


class TicksAreRememberedForEver(MemorySchedules):
    def fire(self, firing: Firing) -> Fired:
        before = dict(self._ticks.get(firing.schedule, {}))
        answer = super().fire(firing)
        if answer is Fired.FIRED:
            made = dict(zip(firing.passage.ticks, (new.id for new in firing.jobs), strict=True))
            self._ticks[firing.schedule] = before | made
        return answer


class OrphansAreDue(MemorySchedules):
    def due(self, limit: int, now: datetime) -> DueSchedules:
        declared = {name: record.declared_at for name, record in self._records.items()}
        self._records = {name: replace(record, declared_at=None) for name, record in self._records.items()}
        due = super().due(limit, now)
        self._records = {name: replace(record, declared_at=declared[name]) for name, record in self._records.items()}
        return due


class WhatIsDueHasNoLimit(MemorySchedules):
    def due(self, limit: int, now: datetime) -> DueSchedules:
        return super().due(1_000, now)


class DeclaringUndoesWhatWasSet(MemorySchedules):
    def declare(self, plans: Mapping[str, Plan], code_from: datetime, now: datetime) -> bool:
        self._records = {
            name: replace(record, override=None) if record.declared is not None else record
            for name, record in self._records.items()
        }
        return super().declare(plans, code_from, now)


class DeclaringBringsBackWhatWasRemoved(MemorySchedules):
    def declare(self, plans: Mapping[str, Plan], code_from: datetime, now: datetime) -> bool:
        self._records = {name: record for name, record in self._records.items() if not record.is_removed}
        return super().declare(plans, code_from, now)


class OldCodeDeclaresOverYoungerCode(MemorySchedules):
    def declare(self, plans: Mapping[str, Plan], code_from: datetime, now: datetime) -> bool:
        return super().declare(plans, now, now)


class NewSchedulesFireForThePast(MemorySchedules):
    def declare(self, plans: Mapping[str, Plan], code_from: datetime, now: datetime) -> bool:
        known = set(self._records)
        changed = super().declare(plans, code_from, now)
        for name in plans.keys() - known:
            past = plans[name].timing.next_after(now - timedelta(days=2))
            self._records[name] = replace(self._records[name], next_tick=past)
        return changed


class RemovedSchedulesLeaveTheirTicks(MemorySchedules):
    def change(self, name: str, change: ScheduleChange, now: datetime) -> ScheduleRecord | None:
        ticks = self._ticks.get(name)
        changed = super().change(name, change, now)
        if ticks is not None:
            self._ticks[name] = ticks
        return changed


class ResumingCountsFromNow(MemorySchedules):
    """Also when the clock was put back, so that a tick comes again."""

    def change(self, name: str, change: ScheduleChange, now: datetime) -> ScheduleRecord | None:
        def forgetful(record: ScheduleRecord | None, now: datetime) -> ScheduleRecord | None:
            return change(None if record is None else replace(record, passed_tick=None), now)

        return super().change(name, forgetful, now)


class TicksAreRefusedByBounds(MemoryStore):
    def _enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        return super()._enqueue([replace(new, is_exempt=False) for new in jobs])


def with_schedules(kind: type[MemorySchedules]) -> type[MemoryStore]:
    def make(store: MemoryStore, *arguments: object, **options: object) -> None:
        MemoryStore.__init__(store, *arguments, **options)  # type: ignore[arg-type]
        store._schedules = kind(store._state, store._enqueue_ticks)

    return type(kind.__name__, (MemoryStore,), {"__init__": make})


def _mutant(kind: type[MemorySchedules], caught_by: str) -> Mutant:
    return Mutant(with_schedules(kind), caught_by)


MUTANTS = [
    _mutant(FireIgnoresWhereItStands, "test_of_many_schedulers_one_fires"),
    _mutant(FireIgnoresTheRevision, "test_what_was_decided_before_a_change_is_not_done_after_it"),
    _mutant(FireStaysWhereItIs, "test_a_tick_makes_one_job_and_the_schedule_moves_on"),
    _mutant(FireIgnoresOverlap, "test_an_earlier_job_that_somebody_retries_is_unfinished_again"),
    _mutant(FireLooksAtTheLastJobOnly, "test_an_earlier_job_that_somebody_retries_is_unfinished_again"),
    _mutant(FireAlwaysSkipsOverlap, "test_ticks_that_queue_make_jobs_whatever_is_unfinished"),
    _mutant(TicksAreForgotten, "test_a_tick_makes_one_job_and_the_schedule_moves_on"),
    _mutant(TicksAreRememberedForEver, "test_only_the_last_ticks_are_remembered"),
    _mutant(OrphansAreDue, "test_a_schedule_that_no_worker_declares_waits_until_one_does"),
    _mutant(WhatIsDueHasNoLimit, "test_the_longest_over_come_first_and_no_more_than_asked_for"),
    _mutant(DeclaringUndoesWhatWasSet, "test_what_was_changed_is_in_force_and_what_the_code_says_is_kept"),
    _mutant(DeclaringBringsBackWhatWasRemoved, "test_what_was_removed_from_the_code_s_stays_removed"),
    _mutant(OldCodeDeclaresOverYoungerCode, "test_old_code_does_not_undo_what_younger_code_declared"),
    _mutant(NewSchedulesFireForThePast, "test_a_declared_schedule_stands_at_its_first_tick_from_now"),
    _mutant(RemovedSchedulesLeaveTheirTicks, "test_what_was_added_is_gone_when_it_is_removed"),
    _mutant(ResumingCountsFromNow, "test_a_clock_that_is_put_back_repeats_no_tick"),
    Mutant(TicksAreRefusedByBounds, "test_no_bound_refuses_a_tick"),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.store.__name__)
async def test_a_broken_promise_about_schedules_is_noticed(mutant: Mutant) -> None:
    assert await run_contract_test(mutant.caught_by, mutant.store) is not None


@pytest.mark.parametrize("name", sorted({mutant.caught_by for mutant in MUTANTS}))
async def test_what_notices_a_mutant_accepts_the_original(name: str) -> None:
    assert await run_contract_test(name, MemoryStore) is None
