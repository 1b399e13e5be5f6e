"""What becomes of schedules and their ticks, decided without a clock and without a store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import schedule
from holdfast.errors import InvalidOption, ScheduleNotFound
from holdfast.schedule import (
    LATE_AFTER,
    MOST_CAUGHT_UP,
    ORPHANED_AFTER,
    Catchup,
    Firing,
    Overlap,
    Passage,
    Plan,
    ScheduleRecord,
    check_plan,
)

NOW = datetime(2026, 5, 5, 10, 20, 30, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
JOB = UUID("01890000-0000-7000-8000-000000000001")
HOURLY = Plan(task="digest", cron="0 * * * *")


def added(plan: Plan = HOURLY, now: datetime = NOW) -> ScheduleRecord:
    return schedule.add(None, "digest", plan, now)


def declared(plan: Plan = HOURLY, now: datetime = NOW) -> ScheduleRecord:
    return schedule.declare(None, "digest", plan, now, now)


def moved(record: ScheduleRecord, passage: Passage) -> ScheduleRecord:
    assert record.next_tick is not None
    firing = Firing(record.name, record.revision, record.next_tick, passage, [])
    assert schedule.stands(record, firing)
    return schedule.move_on(record, firing, dict.fromkeys(passage.ticks, JOB))


# ── ticks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_schedule_never_fires_for_the_past() -> None:
    assert added().next_tick == datetime(2026, 5, 5, 11, tzinfo=UTC)
    assert added(Plan(task="digest", at=NOW - HOUR)).next_tick is None
    assert schedule.decide(added(), NOW) is None


def test_a_tick_that_is_due_makes_a_job_whatever_is_said_of_missed_ones() -> None:
    for catchup in Catchup:
        record = added(replace(HOURLY, catchup=catchup, overlap=Overlap.QUEUE))
        tick = NOW.replace(hour=11, minute=0, second=0)
        for late in (timedelta(0), LATE_AFTER):
            assert schedule.decide(record, tick + late) == Passage([tick], tick, tick + HOUR)


def test_missed_ticks_are_skipped_or_made_up_for_once_or_each() -> None:
    now = NOW + 5 * HOUR
    ticks = [datetime(2026, 5, 5, hour, tzinfo=UTC) for hour in (11, 12, 13, 14, 15)]
    for catchup, expected in ((Catchup.SKIP, []), (Catchup.ONCE, ticks[-1:]), (Catchup.ALL, ticks)):
        record = added(replace(HOURLY, catchup=catchup, overlap=Overlap.QUEUE))
        assert schedule.decide(record, now) == Passage(expected, ticks[-1], ticks[-1] + HOUR)


def test_ticks_that_are_a_little_late_are_not_missed() -> None:
    now = NOW + timedelta(seconds=10)
    ticks = [NOW + timedelta(seconds=number) for number in range(1, 11)]
    for catchup in (Catchup.SKIP, Catchup.ONCE):
        plan = Plan(task="digest", every=timedelta(seconds=1), catchup=catchup, overlap=Overlap.QUEUE)
        assert schedule.decide(added(plan), now) == Passage(ticks, ticks[-1], ticks[-1] + timedelta(seconds=1))
        passage = schedule.decide(added(replace(plan, overlap=Overlap.SKIP)), now)
        assert passage == Passage(ticks[:1], ticks[-1], ticks[-1] + timedelta(seconds=1), skipped=9)
        record = moved(added(replace(plan, overlap=Overlap.SKIP)), passage)
        assert (record.fired, record.skipped, record.last_skipped) == (1, 9, ticks[-1])


def test_after_a_long_time_the_oldest_missed_ticks_are_dropped() -> None:
    plan = Plan(task="digest", every=MINUTE, catchup=Catchup.ALL, overlap=Overlap.QUEUE)
    passage = schedule.decide(added(plan), NOW + 30 * DAY)
    assert passage is not None
    assert passage.is_cut
    assert len(passage.ticks) == MOST_CAUGHT_UP
    assert passage.ticks[-1] == passage.passed == (NOW + 30 * DAY).replace(second=0)


def test_what_happens_once_happens_once_even_if_late() -> None:
    record = added(Plan(task="digest", at=NOW + HOUR))
    passage = schedule.decide(record, NOW + DAY)
    assert passage == Passage([NOW + HOUR], NOW + HOUR, None)
    assert schedule.decide(moved(record, passage), NOW + 2 * DAY) is None


plans = st.builds(
    lambda timing, catchup: Plan(task="digest", catchup=catchup, overlap=Overlap.QUEUE, **timing),
    st.sampled_from(
        [
            {"cron": "30 2 * * *", "tz": "Europe/Paris"},
            {"cron": "*/20 * * * *", "tz": "Australia/Lord_Howe"},
            {"cron": "0 9 * * mon-fri", "tz": "America/New_York"},
            {"every": timedelta(minutes=7)},
            {"every": timedelta(hours=30)},
        ]
    ),
    st.sampled_from(Catchup),
)
starts = st.timedeltas(timedelta(0), 365 * DAY).map(lambda span: NOW + span)


@given(plans, starts, st.lists(st.timedeltas(timedelta(0), timedelta(days=2)), max_size=20))
def test_whenever_somebody_looks_no_tick_is_doubled_and_none_is_left_out(
    plan: Plan, start: datetime, pauses: list[timedelta]
) -> None:
    record, now = added(plan, start), start
    fired: list[datetime] = []
    for pause in pauses:
        now += pause
        passage = schedule.decide(record, now)
        if passage is not None:
            assert all(record.next_tick <= tick <= now for tick in passage.ticks)  # type: ignore[operator]
            fired += passage.ticks
            record = moved(record, passage)
        assert record.next_tick is not None
        assert record.next_tick > now
    everything: list[datetime] = []
    tick = plan.timing.next_after(start)
    while tick is not None and tick <= now:
        everything.append(tick)
        tick = plan.timing.next_after(tick)
    assert fired == sorted(set(fired))
    assert set(fired) <= set(everything)
    if plan.catchup is Catchup.ALL:
        assert fired == everything
    if plan.catchup is Catchup.ONCE:
        assert fired[-1:] == everything[-1:]


@given(plans, starts, st.timedeltas(timedelta(0), timedelta(days=3)))
def test_a_clock_that_is_put_back_repeats_no_tick(plan: Plan, start: datetime, back: timedelta) -> None:
    record = added(plan, start)
    assert record.next_tick is not None
    passage = schedule.decide(record, record.next_tick)
    assert passage is not None
    record = moved(record, passage)
    now = passage.passed - back
    assert schedule.decide(record, now) is None
    changes: list[Callable[[ScheduleRecord], ScheduleRecord | None]] = [
        lambda record: schedule.resume(schedule.pause(record, now), now),
        lambda record: schedule.change(record, {"cron": "* * * * *"}, now),
    ]
    for change in changes:
        changed = change(record)
        assert changed is not None
        assert changed.next_tick is not None
        assert changed.next_tick > passage.passed


def test_only_one_of_two_decisions_stands() -> None:
    record = added()
    assert record.next_tick is not None
    passage = schedule.decide(record, record.next_tick)
    assert passage is not None
    firing = Firing(record.name, record.revision, record.next_tick, passage, [])
    assert schedule.stands(record, firing)
    assert not schedule.stands(schedule.move_on(record, firing, {}), firing)
    assert not schedule.stands(schedule.change(record, {"queue": "other"}, NOW), firing)
    assert not schedule.stands(schedule.resume(schedule.pause(record, NOW), NOW), firing)
    assert not schedule.stands(None, firing)


def test_what_a_firing_did_is_remembered() -> None:
    record = added()
    assert record.next_tick is not None
    passage = schedule.decide(record, record.next_tick)
    assert passage is not None
    tick = passage.passed
    fired = moved(record, passage)
    assert (fired.last_tick, fired.last_job, fired.fired, fired.next_tick) == (tick, JOB, 1, tick + HOUR)
    firing = Firing(record.name, record.revision, record.next_tick, passage, [])
    skipped = schedule.move_on(record, firing, None)
    assert (skipped.last_tick, skipped.skipped, skipped.last_skipped, skipped.fired) == (None, 1, tick, 0)


# ── the code, and people ─────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_set_at_run_time_is_in_force_until_it_is_reset() -> None:
    record = schedule.change(declared(), {"cron": "30 * * * *"}, NOW)
    assert record.plan.cron == "30 * * * *"
    assert record.next_tick == NOW.replace(minute=30, second=0)
    again = schedule.declare(record, "digest", replace(HOURLY, cron="15 * * * *"), NOW + MINUTE, NOW + MINUTE)
    assert (again.plan.cron, again.declared and again.declared.cron) == ("30 * * * *", "15 * * * *")
    assert again.next_tick == record.next_tick
    reset = schedule.reset(again, NOW + MINUTE)
    assert (reset.plan.cron, reset.override) == ("15 * * * *", None)
    assert reset.next_tick == NOW.replace(hour=11, minute=15, second=0)


def test_what_was_removed_stays_removed_when_the_code_declares_it_again() -> None:
    record = schedule.remove(declared(), NOW)
    assert record is not None
    again = schedule.declare(record, "digest", replace(HOURLY, cron="15 * * * *"), NOW + DAY, NOW + DAY)
    assert (again.is_removed, again.next_tick) == (True, None)
    for verb in (schedule.pause, schedule.resume, schedule.remove):
        with pytest.raises(ScheduleNotFound, match="reset"):
            verb(again, NOW + DAY)
    back = schedule.reset(again, NOW + DAY)
    assert (back.is_removed, back.next_tick) == (False, NOW.replace(hour=11, minute=15, second=0, day=6))


def test_what_was_added_at_run_time_is_forgotten_when_it_is_removed() -> None:
    assert schedule.remove(added(), NOW) is None
    with pytest.raises(InvalidOption, match="not in the code"):
        schedule.reset(added(), NOW)


def test_old_code_does_not_undo_what_younger_code_has_declared() -> None:
    record = schedule.declare(declared(), "digest", replace(HOURLY, cron="15 * * * *"), NOW + HOUR, NOW + HOUR)
    assert record.plan.cron == "15 * * * *"
    assert schedule.declare(record, "digest", HOURLY, NOW, NOW + 2 * HOUR) is record
    back = schedule.declare(record, "digest", HOURLY, NOW + 2 * HOUR, NOW + 2 * HOUR)
    assert back.plan == HOURLY


def test_a_schedule_that_nobody_declares_any_more_waits_and_then_catches_up() -> None:
    record = declared()
    tick = record.next_tick
    assert tick is not None
    late = tick + ORPHANED_AFTER
    assert record.is_orphaned(late)
    assert schedule.decide(record, late) is None
    again = schedule.declare(record, "digest", HOURLY, NOW, late)
    passage = schedule.decide(again, late)
    assert passage is not None
    assert passage.ticks == [tick]
    assert not added().is_orphaned(NOW + 400 * DAY)


def test_to_declare_the_same_again_and_again_writes_only_now_and_then() -> None:
    record = declared()
    assert schedule.declare(record, "digest", HOURLY, NOW, NOW + timedelta(seconds=10)) is record
    later = schedule.declare(record, "digest", HOURLY, NOW - MINUTE, NOW + MINUTE)
    assert (later.declared_at, later.code_from, later.revision) == (NOW + MINUTE, NOW, record.revision)


def test_a_tick_that_is_due_survives_a_change_that_does_not_concern_its_time() -> None:
    record = declared()
    assert record.next_tick is not None
    late = record.next_tick + MINUTE
    assert schedule.change(record, {"queue": "other"}, late).next_tick == record.next_tick
    again = schedule.declare(record, "digest", replace(HOURLY, args_json='{"a":1}'), late, late)
    assert again.next_tick == record.next_tick
    assert schedule.change(record, {"tz": "Asia/Kathmandu"}, late).next_tick != record.next_tick


def test_ticks_that_pass_during_a_pause_are_not_missed() -> None:
    paused = schedule.pause(added(), NOW)
    assert schedule.decide(paused, NOW + DAY) is None
    assert schedule.pause(paused, NOW + MINUTE) is paused
    changed = schedule.change(paused, {"cron": "15 * * * *"}, NOW)
    assert changed.next_tick is None
    resumed = schedule.resume(changed, NOW + DAY)
    assert resumed.next_tick == NOW.replace(day=6, hour=11, minute=15, second=0)
    assert schedule.resume(resumed, NOW + 2 * DAY) is resumed


def test_another_time_takes_the_place_of_the_one_before() -> None:
    record = schedule.change(added(Plan(task="digest", cron="0 9 * * *", tz="Europe/Paris")), {"every": HOUR}, NOW)
    assert (record.plan.cron, record.plan.every, record.plan.tz) == (None, HOUR, "UTC")


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InvalidOption, match="already"):
        schedule.add(added(), "digest", HOURLY, NOW)
    with pytest.raises(InvalidOption, match="reset"):
        schedule.add(schedule.remove(declared(), NOW), "digest", HOURLY, NOW)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({}, "one of cron=, every= and at="),
        ({"cron": "0 * * * *", "every": HOUR}, "both"),
        ({"every": HOUR, "tz": "Europe/Paris"}, "tz="),
        ({"every": HOUR, "jitter": 2 * HOUR}, "jitter"),
        ({"cron": "*/10 * * * *", "jitter": HOUR}, "jitter"),
        ({"cron": "0 * * * *", "catchup": Catchup.ALL}, "overlap='queue'"),
        ({"cron": "0 * * * *", "tz": "Mars/Olympus"}, "time zone"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidOption, match=hint):
        check_plan(Plan(task="digest", **options))
