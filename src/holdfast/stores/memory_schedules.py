"""The schedules of the memory store, and their last ticks. Whoever uses this has the store's lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from holdfast import schedule
from holdfast.job import JobState, NewJob
from holdfast.schedule import REMEMBERED_TICKS, Fired, Firing, Overlap, Plan, ScheduleRecord, TickRecord
from holdfast.store import DueSchedules, ScheduleChange


class MemorySchedules:
    """Schedules in a dictionary, by name."""

    def __init__(
        self, state_of: Callable[[UUID], JobState | None], enqueue: Callable[[Sequence[NewJob]], list[UUID]]
    ) -> None:
        """`enqueue` makes jobs, or finds them, and gives their ids."""
        self._state_of = state_of
        self._enqueue = enqueue
        self._records: dict[str, ScheduleRecord] = {}
        self._ticks: dict[str, dict[datetime, UUID]] = {}

    def declare(self, plans: Mapping[str, Plan], code_from: datetime, now: datetime) -> bool:
        """Whether anything has changed by that."""
        before = dict(self._records)
        for name, plan in plans.items():
            self._records[name] = schedule.declare(self._records.get(name), name, plan, code_from, now)
        return self._records != before

    def listed(self, names: Sequence[str] | None) -> list[ScheduleRecord]:
        return [self._records[name] for name in sorted(self._records) if names is None or name in names]

    def change(self, name: str, change: ScheduleChange, now: datetime) -> ScheduleRecord | None:
        changed = change(self._records.get(name), now)
        if changed is not None:
            self._records[name] = changed
        elif name in self._records:
            del self._records[name]
            self._ticks.pop(name, None)
        return changed

    def due(self, limit: int, now: datetime) -> DueSchedules:
        standing = sorted(
            (record.next_tick, name)
            for name, record in self._records.items()
            if record.next_tick is not None and not record.is_orphaned(now)
        )
        over = [self._records[name] for tick, name in standing if tick <= now]
        next_in = max(standing[0][0] - now, timedelta(0)) if standing else None
        return DueSchedules(now, over[:limit], next_in)

    def fire(self, firing: Firing) -> Fired:
        record = self._records.get(firing.schedule)
        if record is None or not schedule.stands(record, firing):
            return Fired.LATE
        ticks = self._ticks.setdefault(firing.schedule, {})
        if firing.jobs and record.plan.overlap is Overlap.SKIP and self._has_unfinished(ticks):
            self._records[firing.schedule] = schedule.move_on(record, firing, None)
            return Fired.SKIPPED
        made = dict(zip(firing.passage.ticks, self._enqueue(firing.jobs), strict=True))
        self._records[firing.schedule] = schedule.move_on(record, firing, made)
        ticks |= made
        for tick in sorted(ticks)[:-REMEMBERED_TICKS]:
            del ticks[tick]
        return Fired.FIRED

    def _has_unfinished(self, ticks: Mapping[datetime, UUID]) -> bool:
        states = map(self._state_of, ticks.values())
        return any(state is not None and not state.is_final for state in states)

    def ticks(self, name: str, limit: int) -> list[TickRecord]:
        ticks = self._ticks.get(name, {})
        latest = sorted(ticks, reverse=True)[:limit]
        return [TickRecord(tick, ticks[tick], self._state_of(ticks[tick])) for tick in latest]
