"""What a schedule is, where it stands, and what becomes of its ticks. Decisions only: no clock, no store, no chance.

The code declares a schedule, people may change it at run time, and that is in force until it is reset. A schedule
stands at its next tick. To fire is to make the jobs of the ticks that are due and to move on, in one transaction that
only one of many schedulers can win: the schedule must still stand where it stood when this was decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast.errors import InvalidOption, ScheduleNotFound
from holdfast.job import JobState, NewJob
from holdfast.span import format_span
from holdfast.timing import SHORTEST_INTERVAL, At, Cron, Every, Timing, find_zone, latest_ticks

MOST_CAUGHT_UP: Final = 1_000
"""Missed ticks of one schedule that are made up for at once; the oldest are dropped."""
LATE_AFTER: Final = timedelta(seconds=60)
"""A tick that is later than this has been missed."""
_MOST_IN_TIME: Final = LATE_AFTER // SHORTEST_INTERVAL + 1
ORPHANED_AFTER: Final = timedelta(minutes=5)
"""A schedule of the code makes no jobs when no worker has declared it for so long."""
DECLARED_EVERY: Final = timedelta(minutes=1)
REMEMBERED_TICKS: Final = 100


class Catchup(StrEnum):
    """What becomes of ticks that were missed because nobody was there."""

    SKIP = "skip"
    """Nothing."""
    ONCE = "once"
    """One job, for the latest of them."""
    ALL = "all"
    """A job for each of them."""


class Overlap(StrEnum):
    """What becomes of a tick if the job of an earlier one is unfinished."""

    SKIP = "skip"
    """No job; it is counted."""
    QUEUE = "queue"
    """A job, as always."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule says: when, what, and how. One of `cron`, `every` and `at` is given."""

    task: str
    cron: str | None = None
    every: timedelta | None = None
    at: datetime | None = None
    tz: str = "UTC"
    catchup: Catchup = Catchup.ONCE
    overlap: Overlap = Overlap.SKIP
    jitter: timedelta = timedelta(0)
    args_json: str = "{}"
    queue: str | None = None
    """None: as the task says. So it is with the priority."""
    priority: int | None = None

    @property
    def timing(self) -> Timing:
        return _timing(self.cron, self.every, self.at, self.tz)

    @property
    def in_words(self) -> str:
        """When it fires, in short."""
        if self.cron is not None:
            return f"cron {self.cron} {self.tz}"
        if self.every is not None:
            return f"every {format_span(self.every)}"
        return f"at {self.at.isoformat() if self.at else ''}"

    def __repr__(self) -> str:
        return f"<Plan {self.task} {self.in_words}>"  # arguments may be secret

    def has_timing_of(self, other: Plan) -> bool:
        """Whether both fire at the same ticks, as they are written."""
        return (self.cron, self.every, self.at, self.tz) == (other.cron, other.every, other.at, other.tz)


def check_plan(plan: Plan) -> Plan:
    """Refuse what can't be kept with an InvalidOption that says what to do."""
    given = [name for name in ("cron", "every", "at") if getattr(plan, name) is not None]
    if len(given) != 1:
        what = f"{' and '.join(f'{name}=' for name in given)} are both given" if given else "nothing says when"
        raise InvalidOption(f"A schedule needs one of cron=, every= and at=, and {what}.")
    gap = plan.timing.shortest_gap
    if plan.tz != "UTC" and plan.every is not None:
        raise InvalidOption("tz= has no meaning with every=: an interval is the same everywhere. Use cron= with tz=.")
    if gap is not None and plan.jitter > gap:
        raise InvalidOption(
            f"jitter={format_span(plan.jitter)} is longer than the time between two ticks, {format_span(gap)}. "
            "Make it shorter, so that jobs keep their order."
        )
    if plan.catchup is Catchup.ALL and plan.overlap is Overlap.SKIP:
        raise InvalidOption(
            "catchup='all' and overlap='skip' can't go together: of the ticks that were missed, each would be "
            "skipped because of the one before it. Add overlap='queue', or use catchup='once'."
        )
    return plan


@lru_cache(maxsize=1024)
def _timing(cron: str | None, every: timedelta | None, at: datetime | None, tz: str) -> Timing:
    if cron is not None:
        return Cron(cron, find_zone(tz))
    if every is not None:
        return Every(every)
    assert at is not None
    return At(at)


# ── where it stands ──────────────────────────────────────────────────────────────────────────────────────────────────


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as the store knows it. What was set at run time is in force; what the code says is shown beside it."""

    name: str
    declared: Plan | None = None
    """What the code says; None if it was added at run time."""
    override: Plan | None = None
    """What was set at run time."""
    revision: int = 1
    created_at: datetime
    declared_at: datetime | None = None
    """When a worker last had it in its code."""
    code_from: datetime | None = None
    """When that code was started."""
    paused_at: datetime | None = None
    removed_at: datetime | None = None
    """It is in the code, but somebody has removed it."""
    next_tick: datetime | None = None
    """Where it stands; None if it does not fire any more."""
    passed_tick: datetime | None = None
    """The last tick that was decided upon. None before it, nor itself, comes again."""
    last_tick: datetime | None = None
    """The last tick that made a job, and that job."""
    last_job: UUID | None = None
    fired: int = 0
    """How many ticks made a job, and how many did not because of an unfinished one."""
    skipped: int = 0
    last_skipped: datetime | None = None

    def __repr__(self) -> str:
        state = "removed" if self.is_removed else "paused" if self.is_paused else f"next {self.next_tick}"
        return f"<ScheduleRecord {self.name} {self.plan.in_words} {state}>"

    @property
    def plan(self) -> Plan:
        """What is in force."""
        plan = self.override or self.declared
        assert plan is not None
        return plan

    @property
    def source(self) -> str:
        return "runtime" if self.declared is None else "code"

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    @property
    def is_removed(self) -> bool:
        return self.removed_at is not None

    @property
    def orphaned_at(self) -> datetime | None:
        """From when on it makes no jobs, unless a worker declares it again."""
        return None if self.declared_at is None else self.declared_at + ORPHANED_AFTER

    def is_orphaned(self, now: datetime) -> bool:
        """Whether it makes no jobs because no worker has declared it for a while."""
        return self.orphaned_at is not None and self.orphaned_at <= now

    def next_ticks(self, number: int) -> list[datetime]:
        """Its next ticks, as long as nobody changes it."""
        return list(_following(self.plan.timing, self.next_tick, number))


class TickRecord(msgspec.Struct, frozen=True):
    """A tick that made a job. The job's state is None once it was pruned."""

    tick: datetime
    job: UUID
    state: JobState | None = None


def _following(timing: Timing, tick: datetime | None, number: int) -> Iterator[datetime]:
    while tick is not None and number > 0:
        yield tick
        tick, number = timing.next_after(tick), number - 1


# ── declaring and changing ───────────────────────────────────────────────────────────────────────────────────────────


def declare(record: ScheduleRecord | None, name: str, plan: Plan, code_from: datetime, now: datetime) -> ScheduleRecord:
    """Take over what the code says. What younger code says stays; what people have set stays in force."""
    if record is None:
        next_tick = plan.timing.next_after(now)
        return ScheduleRecord(
            name=name, declared=plan, created_at=now, declared_at=now, code_from=code_from, next_tick=next_tick
        )
    if record.declared == plan:
        if (
            record.declared_at is not None
            and now - record.declared_at < DECLARED_EVERY / 2
            and record.declared_at <= now
        ):
            return record
        return replace(record, declared_at=now, code_from=max(code_from, record.code_from or code_from))
    if record.code_from is not None and code_from < record.code_from:
        return record
    changed = replace(record, declared=plan, declared_at=now, code_from=code_from)
    return changed if record.override is not None else _replanned(record, changed, now)


def add(record: ScheduleRecord | None, name: str, plan: Plan, now: datetime) -> ScheduleRecord:
    """A new one, of which the code says nothing."""
    if record is not None:
        advice = "hf.schedules.reset() brings it back" if record.is_removed else "Change it, or choose another name"
        raise InvalidOption(f"There is a schedule {name!r} already{' that was removed' * record.is_removed}. {advice}.")
    return ScheduleRecord(name=name, override=plan, created_at=now, next_tick=plan.timing.next_after(now))


def change(record: ScheduleRecord, edits: Mapping[str, Any], now: datetime) -> ScheduleRecord:
    """Set some of what a plan says, over what the code says. If that is when, it counts from now."""
    _refuse_removed(record)
    edited = dict(edits)
    is_retimed = any(name in edited for name in ("cron", "every", "at"))
    if "tz" in edited and not is_retimed and record.plan.at is not None:
        raise InvalidOption("at= is a moment, and the same one in every time zone. Change at= together with tz=.")
    if is_retimed:
        edited = {"cron": None, "every": None, "at": None, **edited}
        if edited["every"] is not None:
            edited.setdefault("tz", "UTC")
    plan = check_plan(replace(record.plan, **edited))
    return _replanned(record, replace(record, override=plan), now)


def pause(record: ScheduleRecord, now: datetime) -> ScheduleRecord:
    """Make no more jobs. Ticks that pass meanwhile are not missed."""
    _refuse_removed(record)
    if record.is_paused:
        return record
    return replace(record, paused_at=now, next_tick=None, revision=record.revision + 1)


def resume(record: ScheduleRecord, now: datetime) -> ScheduleRecord:
    """Go on with the first tick from now."""
    _refuse_removed(record)
    return _restarted(replace(record, paused_at=None), now) if record.is_paused else record


def remove(record: ScheduleRecord, now: datetime) -> ScheduleRecord | None:
    """Forget it; or if the code declares it, remember that it was removed, since the code will do so again."""
    _refuse_removed(record)
    if record.declared is None:
        return None
    return replace(record, removed_at=now, next_tick=None, revision=record.revision + 1)


def reset(record: ScheduleRecord, now: datetime) -> ScheduleRecord:
    """Back to what the code says: neither changed, nor paused, nor removed."""
    if record.declared is None:
        raise InvalidOption(f"Schedule {record.name!r} is not in the code, so it can't be reset. Change or remove it.")
    back = replace(record, override=None, paused_at=None, removed_at=None)
    if record.is_paused or record.is_removed:
        return _restarted(back, now)
    return _replanned(record, back, now)


def _refuse_removed(record: ScheduleRecord) -> None:
    if record.is_removed:
        raise ScheduleNotFound(f"Schedule {record.name!r} was removed. hf.schedules.reset() brings it back.")


def _replanned(before: ScheduleRecord, after: ScheduleRecord, now: datetime) -> ScheduleRecord:
    """What is due and has not fired yet must not get lost because of other arguments."""
    if before.next_tick is None and (before.is_paused or before.is_removed):
        return replace(after, revision=before.revision + 1)
    if after.plan.has_timing_of(before.plan):
        return replace(after, revision=before.revision + 1)
    return _restarted(after, now)


def _restarted(record: ScheduleRecord, now: datetime) -> ScheduleRecord:
    """Count from now. If the clock was put back, ticks that have passed don't come again."""
    since = now if record.passed_tick is None else max(now, record.passed_tick)
    return replace(record, next_tick=record.plan.timing.next_after(since), revision=record.revision + 1)


# ── firing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Passage(msgspec.Struct, frozen=True):
    """What is to become of a schedule whose time has come."""

    ticks: list[datetime]
    """Those that make a job."""
    passed: datetime
    """The last tick that was due."""
    next_tick: datetime | None
    skipped: int = 0
    """How many more would make a job, if the first of them did not."""
    is_cut: bool = False
    """More were missed than are made up for."""


def decide(record: ScheduleRecord, now: datetime) -> Passage | None:
    """What the ticks that are due come to; None if none is. Those of an orphan wait until it is declared again."""
    first = record.next_tick
    if first is None or first > now or record.is_orphaned(now):
        return None
    plan = record.plan
    timing = plan.timing
    due, is_cut = latest_ticks(timing, first, now, MOST_CAUGHT_UP if plan.catchup is Catchup.ALL else _MOST_IN_TIME)
    if not due:
        due, is_cut = [first], False  # the zone's rules have changed since it was told to stand here
    passed = due[-1]
    if plan.catchup is not Catchup.ALL:
        is_cut = False
        in_time = [tick for tick in due if now - tick <= LATE_AFTER]
        due = in_time or (due[-1:] if plan.catchup is Catchup.ONCE else [])
    skipped = len(due) - 1 if due and plan.overlap is Overlap.SKIP else 0
    return Passage(due[: len(due) - skipped], passed, timing.next_after(passed), skipped, is_cut)


class Firing(msgspec.Struct, frozen=True):
    """A decision for the store to carry out, if the schedule still stands at this tick, in this revision."""

    schedule: str
    revision: int
    tick: datetime
    passage: Passage
    jobs: list[NewJob]
    """One for each tick of the passage."""


class Fired(StrEnum):
    """What came of a firing."""

    FIRED = "fired"
    SKIPPED = "skipped"
    """It moved on without a job: that of an earlier tick is unfinished."""
    LATE = "late"
    """Somebody else was faster, or has changed the schedule. Nothing was done."""


def stands(record: ScheduleRecord | None, firing: Firing) -> bool:
    """Whether the schedule is still where it was when this was decided."""
    return record is not None and (record.revision, record.next_tick) == (firing.revision, firing.tick)


def move_on(record: ScheduleRecord, firing: Firing, jobs: Mapping[datetime, UUID] | None) -> ScheduleRecord:
    """The schedule after a firing that has made these jobs, by their ticks; None if an unfinished job forbade it."""
    passage = firing.passage
    moved = replace(record, next_tick=passage.next_tick, passed_tick=passage.passed)
    skipped = passage.skipped + (jobs is None)
    if skipped:
        moved = replace(moved, skipped=record.skipped + skipped, last_skipped=passage.passed)
    if not jobs:
        return moved
    last = max(jobs)
    return replace(moved, fired=record.fired + len(jobs), last_tick=last, last_job=jobs[last])
