"""Schedules: what the code declares and people change, and one job for each tick whoever fires it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast import schedule
from holdfast.errors import InvalidOption, ScheduleNotFound
from holdfast.ids import derived_id
from holdfast.job import JobState, NewJob
from holdfast.lifecycle import Complete, GiveBack
from holdfast.schedule import (
    ORPHANED_AFTER,
    REMEMBERED_TICKS,
    Catchup,
    Fired,
    Firing,
    Overlap,
    Plan,
    ScheduleRecord,
    TickRecord,
)
from holdfast.store import HintKind, Store
from holdfast.testing.store_contract.harness import FAILURE, Harness, ids_of

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MINUTELY = Plan(task="digest", every=MINUTE)
PATIENCE = 3.0


async def add(harness: Harness, plan: Plan = MINUTELY, name: str = "digest") -> ScheduleRecord:
    record = await harness.store.change_schedule(name, lambda record, now: schedule.add(record, name, plan, now))
    assert record is not None
    return record


async def find(harness: Harness, name: str = "digest") -> ScheduleRecord:
    [record] = await harness.store.schedules([name])
    return record


def job_of(name: str, tick: datetime, queue: str = "default", args_json: str = "{}", **options: object) -> NewJob:
    id = derived_id(tick, name.encode(), tick.isoformat().encode())
    return NewJob(id, "digest", queue, args_json, is_repeat=True, is_exempt=True, **options)  # type: ignore[arg-type]


def firing_of(record: ScheduleRecord, now: datetime, **options: object) -> Firing:
    passage = schedule.decide(record, now)
    assert passage is not None, "it is not due"
    assert record.next_tick is not None
    jobs = [job_of(record.name, tick, **options) for tick in passage.ticks]  # type: ignore[arg-type]
    return Firing(record.name, record.revision, record.next_tick, passage, jobs)


async def fire(harness: Harness, store: Store | None = None, **options: object) -> list[Fired]:
    """What a scheduler does."""
    store = store or harness.store
    due = await store.due_schedules(100)
    return await store.fire([firing_of(record, due.now, **options) for record in due.schedules])


async def jobs_made(harness: Harness) -> list[UUID]:
    return ids_of(await harness.everything())[::-1]


class ScheduleContract:
    # ── what the code declares, and people change ────────────────────────────────────────────────────────────────

    async def test_a_declared_schedule_stands_at_its_first_tick_from_now(self, harness: Harness) -> None:
        now = harness.clock.now()
        plan = Plan(
            task="digest",
            cron="30 2 * * mon-fri",
            tz="Europe/Paris",
            catchup=Catchup.ALL,
            overlap=Overlap.QUEUE,
            jitter=MINUTE,
            args_json='{"name":"é\\u0000"}',
            queue="mail",
            priority=7,
        )
        await harness.store.declare_schedules({"digest": plan, "another": MINUTELY}, HOUR)
        assert [record.name for record in await harness.store.schedules()] == ["another", "digest"]
        assert await find(harness) == ScheduleRecord(
            name="digest",
            declared=plan,
            created_at=now,
            declared_at=now,
            code_from=now - HOUR,
            next_tick=plan.timing.next_after(now),
        )
        assert await harness.store.schedules(["nobody"]) == []

    async def test_nothing_to_declare_is_nothing_to_do(self, harness: Harness) -> None:
        await harness.store.declare_schedules({})
        assert await harness.store.schedules() == []

    async def test_what_was_changed_is_in_force_and_what_the_code_says_is_kept(self, harness: Harness) -> None:
        await harness.store.declare_schedules({"digest": MINUTELY})
        changed = await harness.store.change_schedule("digest", partial(_change, edits={"every": HOUR}))
        assert changed == await find(harness)
        await harness.store.declare_schedules({"digest": replace(MINUTELY, queue="mail")})
        record = await find(harness)
        assert (record.plan.every, record.declared and record.declared.queue) == (HOUR, "mail")
        await harness.store.change_schedule("digest", _reset)
        assert (await find(harness)).plan == replace(MINUTELY, queue="mail")

    async def test_a_change_that_is_refused_changes_nothing(self, harness: Harness) -> None:
        record = await add(harness)
        with pytest.raises(InvalidOption, match="already"):
            await add(harness)
        with pytest.raises(ScheduleNotFound):
            await harness.store.change_schedule("nobody", _pause)
        assert await harness.store.schedules() == [record]

    async def test_what_was_removed_from_the_code_s_stays_removed(self, harness: Harness) -> None:
        await harness.store.declare_schedules({"digest": MINUTELY})
        await harness.store.change_schedule("digest", _remove)
        harness.clock.advance(HOUR)
        await harness.store.declare_schedules({"digest": replace(MINUTELY, queue="mail")})
        record = await find(harness)
        assert (record.is_removed, record.next_tick) == (True, None)
        assert (await harness.store.due_schedules(10)).schedules == []

    async def test_what_was_added_is_gone_when_it_is_removed(self, harness: Harness) -> None:
        await add(harness)
        harness.clock.advance(MINUTE)
        await fire(harness)
        assert await harness.store.change_schedule("digest", _remove) is None
        assert await harness.store.schedules() == []
        assert await harness.store.ticks("digest") == []

    async def test_old_code_does_not_undo_what_younger_code_declared(self, harness: Harness) -> None:
        old, new = MINUTELY, replace(MINUTELY, every=HOUR)
        await harness.store.declare_schedules({"digest": old}, MINUTE)
        harness.clock.advance(HOUR)
        await harness.store.declare_schedules({"digest": new}, MINUTE)
        await harness.store.declare_schedules({"digest": old}, HOUR + MINUTE)
        assert (await find(harness)).plan == new
        await harness.store.declare_schedules({"digest": old})
        assert (await find(harness)).plan == old

    async def test_racing_changes_all_count(self, harness: Harness) -> None:
        stores = harness.pair()

        def count(record: ScheduleRecord | None, now: datetime) -> ScheduleRecord:
            if record is None:
                return schedule.add(None, "digest", replace(MINUTELY, priority=1), now)
            return schedule.change(record, {"priority": (record.plan.priority or 0) + 1}, now)

        await asyncio.gather(*(stores[number % 2].change_schedule("digest", count) for number in range(8)))
        assert (await find(harness)).plan.priority == 8

    async def test_racing_declarers_agree(self, harness: Harness) -> None:
        stores = harness.pair()
        plans = {f"schedule-{number}": replace(MINUTELY, queue=f"queue-{number}") for number in range(20)}
        await asyncio.gather(*(stores[number % 2].declare_schedules(plans) for number in range(6)))
        assert {record.name: record.plan for record in await harness.store.schedules()} == plans

    async def test_whoever_waits_hears_of_a_change(self, harness: Harness) -> None:
        one, other = harness.hearers()
        async with other.changes([HintKind.SCHEDULES]) as hints:
            await one.change_schedule("digest", lambda record, now: schedule.add(record, "digest", MINUTELY, now))
            async with asyncio.timeout(PATIENCE):
                assert (await anext(hints)).kind is HintKind.SCHEDULES
            await one.declare_schedules({"another": MINUTELY})
            async with asyncio.timeout(PATIENCE):
                assert (await anext(hints)).kind is HintKind.SCHEDULES

    # ── what is due ──────────────────────────────────────────────────────────────────────────────────────────────

    async def test_it_is_told_what_is_due_and_when_the_next_one_will_be(self, harness: Harness) -> None:
        assert (await harness.store.due_schedules(10)).next_in is None
        record = await add(harness)
        assert record.next_tick is not None
        wait = record.next_tick - harness.clock.now()
        await add(harness, replace(MINUTELY, every=HOUR), "later")
        due = await harness.store.due_schedules(10)
        assert (due.now, due.schedules, due.next_in) == (harness.clock.now(), [], wait)
        harness.clock.advance(wait)
        due = await harness.store.due_schedules(10)
        assert (due.schedules, due.next_in) == ([record], timedelta(0))

    async def test_the_longest_over_come_first_and_no_more_than_asked_for(self, harness: Harness) -> None:
        for minutes in (4, 2, 3, 5):
            await add(harness, replace(MINUTELY, every=minutes * MINUTE), f"every-{minutes}")
        harness.clock.advance(DAY)
        records = sorted(await harness.store.schedules(), key=lambda record: record.next_tick or harness.clock.now())
        found = (await harness.store.due_schedules(3)).schedules
        assert [record.next_tick for record in found] == [record.next_tick for record in records[:3]]

    async def test_neither_paused_nor_removed_ones_are_due(self, harness: Harness) -> None:
        await harness.store.declare_schedules({"removed": MINUTELY})
        await add(harness, name="paused")
        await harness.store.change_schedule("removed", _remove)
        await harness.store.change_schedule("paused", _pause)
        harness.clock.advance(MINUTE)
        due = await harness.store.due_schedules(10)
        assert (due.schedules, due.next_in) == ([], None)

    async def test_a_schedule_that_no_worker_declares_waits_until_one_does(self, harness: Harness) -> None:
        await harness.store.declare_schedules({"digest": MINUTELY})
        await add(harness, replace(MINUTELY, every=DAY), "added")
        harness.clock.advance(ORPHANED_AFTER)
        due = await harness.store.due_schedules(10)
        assert due.schedules == []
        assert due.next_in is not None
        assert due.next_in > timedelta(0)
        await harness.store.declare_schedules({"digest": MINUTELY})
        assert [record.name for record in (await harness.store.due_schedules(10)).schedules] == ["digest"]
        harness.clock.advance(DAY)
        assert [record.name for record in (await harness.store.due_schedules(10)).schedules] == ["added"]

    # ── firing ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_tick_makes_one_job_and_the_schedule_moves_on(self, harness: Harness) -> None:
        before = await add(harness)
        tick = before.next_tick
        assert tick is not None
        harness.clock.advance(tick - harness.clock.now())
        assert await fire(harness, args_json='{"a":1}') == [Fired.FIRED]
        [id] = await jobs_made(harness)
        job = await harness.record(id)
        assert (job.task, job.queue, job.args, job.created_at) == ("digest", "default", {"a": 1}, tick)
        assert await find(harness) == replace(
            before, next_tick=tick + MINUTE, passed_tick=tick, last_tick=tick, last_job=id, fired=1
        )
        assert await harness.store.ticks("digest") == [TickRecord(tick, id, JobState.PENDING)]
        assert await fire(harness) == []
        assert ids_of(await harness.claim()) == [id]
        await harness.check_counters()

    async def test_of_many_schedulers_one_fires(self, harness: Harness) -> None:
        stores = harness.pair()
        for number in range(5):
            await add(harness, name=f"digest-{number}")
        harness.clock.advance(MINUTE)
        due = await harness.store.due_schedules(10)
        firings = [firing_of(record, due.now) for record in due.schedules]
        answers = await asyncio.gather(*(stores[number % 2].fire(firings) for number in range(8)))
        for column in zip(*answers, strict=True):
            assert sorted(column) == [Fired.FIRED] + 7 * [Fired.LATE]
        assert len(await jobs_made(harness)) == 5
        assert all(record.fired == 1 for record in await harness.store.schedules())

    async def test_what_was_decided_before_a_change_is_not_done_after_it(self, harness: Harness) -> None:
        record = await add(harness)
        harness.clock.advance(MINUTE)
        firing = firing_of(record, harness.clock.now())
        await harness.store.change_schedule("digest", partial(_change, edits={"queue": "mail"}))
        assert await harness.store.fire([firing]) == [Fired.LATE]
        await harness.store.change_schedule("digest", _pause)
        assert await fire(harness) == []
        assert await harness.store.fire([replace(firing, schedule="nobody")]) == [Fired.LATE]
        assert await jobs_made(harness) == []

    async def test_each_missed_tick_makes_a_job_in_order(self, harness: Harness) -> None:
        await add(harness, replace(MINUTELY, catchup=Catchup.ALL, overlap=Overlap.QUEUE))
        harness.clock.advance(10 * MINUTE)
        assert await fire(harness) == [Fired.FIRED]
        ticks = await harness.store.ticks("digest")
        assert len(ticks) == 10
        assert [later.tick - earlier.tick for later, earlier in pairwise(ticks)] == 9 * [MINUTE]
        assert ids_of(await harness.claim(demand=20)) == [tick.job for tick in reversed(ticks)]
        assert (await find(harness)).fired == 10

    async def test_missed_ticks_that_are_skipped_make_no_job(self, harness: Harness) -> None:
        await add(harness, replace(MINUTELY, every=HOUR, catchup=Catchup.SKIP))
        harness.clock.advance(DAY + 90 * MINUTE)
        assert await fire(harness) == [Fired.FIRED]
        record = await find(harness)
        assert (record.fired, record.skipped) == (0, 0)
        assert record.next_tick is not None
        assert record.next_tick > harness.clock.now()
        assert await jobs_made(harness) == []

    @pytest.mark.parametrize("state", ["pending", "active", "retrying", "later"])
    async def test_a_tick_is_skipped_while_the_job_of_an_earlier_one_is_unfinished(
        self, harness: Harness, state: str
    ) -> None:
        await add(harness)
        harness.clock.advance(MINUTE)
        await fire(harness, delay=HOUR if state == "later" else None)
        claimed = await harness.claim() if state in ("active", "retrying") else []
        if state == "retrying":
            await harness.settle(claimed[0], GiveBack(HOUR, is_charged=True, failure=FAILURE))
        harness.clock.advance(MINUTE)
        assert await fire(harness) == [Fired.SKIPPED]
        record = await find(harness)
        assert (record.fired, record.skipped, record.last_skipped) == (1, 1, record.passed_tick)
        assert len(await jobs_made(harness)) == 1

    async def test_a_tick_is_not_skipped_once_the_earlier_job_is_finished(self, harness: Harness) -> None:
        await add(harness)
        for number in range(3):
            harness.clock.advance(MINUTE)
            assert await fire(harness) == [Fired.FIRED], number
            [claimed] = await harness.claim()
            await harness.settle(claimed, Complete(None))
        assert [tick.state for tick in await harness.store.ticks("digest")] == 3 * [JobState.COMPLETED]

    async def test_an_earlier_job_that_somebody_retries_is_unfinished_again(self, harness: Harness) -> None:
        await add(harness)
        for _ in range(2):
            harness.clock.advance(MINUTE)
            await fire(harness)
            await harness.store.cancel(await jobs_made(harness), "")
        [first, _] = await jobs_made(harness)
        await harness.store.retry([first])
        harness.clock.advance(MINUTE)
        assert await fire(harness) == [Fired.SKIPPED]

    async def test_ticks_that_queue_make_jobs_whatever_is_unfinished(self, harness: Harness) -> None:
        await add(harness, replace(MINUTELY, overlap=Overlap.QUEUE))
        for _ in range(3):
            harness.clock.advance(MINUTE)
            assert await fire(harness) == [Fired.FIRED]
        assert len(await jobs_made(harness)) == 3

    async def test_no_bound_refuses_a_tick(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        await harness.enqueue()
        await add(harness)
        harness.clock.advance(MINUTE)
        assert await fire(harness) == [Fired.FIRED]
        assert (await harness.queue()).waiting == 2

    async def test_a_tick_that_has_its_job_makes_no_second_one(self, harness: Harness) -> None:
        """Not even if the schedule is made anew, with other arguments, and the clock was put back."""
        await add(harness)
        harness.clock.advance(MINUTE)
        await fire(harness)
        [id] = await jobs_made(harness)
        await harness.store.change_schedule("digest", _remove)
        harness.clock.jump(-MINUTE)
        await add(harness)
        harness.clock.advance(MINUTE)
        assert await fire(harness, args_json='{"other":1}') == [Fired.FIRED]
        assert await jobs_made(harness) == [id]
        assert (await find(harness)).last_job == id

    async def test_a_clock_that_is_put_back_repeats_no_tick(self, harness: Harness) -> None:
        await add(harness)
        harness.clock.advance(MINUTE)
        await fire(harness)
        standing = (await find(harness)).next_tick
        harness.clock.jump(-HOUR)
        assert await fire(harness) == []
        await harness.store.change_schedule("digest", _pause)
        await harness.store.change_schedule("digest", _resume)
        assert (await find(harness)).next_tick == standing
        assert await fire(harness) == []

    async def test_a_unique_job_that_is_there_is_the_tick_s(self, harness: Harness) -> None:
        there = await harness.enqueue(task="digest", unique_key="all")
        await add(harness)
        harness.clock.advance(MINUTE)
        assert await fire(harness, unique_key="all") == [Fired.FIRED]
        assert await jobs_made(harness) == [there]
        assert (await find(harness)).last_job == there

    async def test_a_jittered_tick_is_due_later(self, harness: Harness) -> None:
        await add(harness)
        harness.clock.advance(MINUTE)
        await fire(harness, delay=timedelta(seconds=20))
        [id] = await jobs_made(harness)
        assert (await harness.record(id)).due_at == harness.clock.now() + timedelta(seconds=20)
        assert await harness.claim() == []
        await harness.pass_time(timedelta(seconds=20))
        assert ids_of(await harness.claim()) == [id]
        await harness.check_counters()

    async def test_only_the_last_ticks_are_remembered(self, harness: Harness) -> None:
        await add(harness, replace(MINUTELY, catchup=Catchup.ALL, overlap=Overlap.QUEUE))
        harness.clock.advance((REMEMBERED_TICKS + 20) * MINUTE)
        await fire(harness)
        ticks = await harness.store.ticks("digest", 1_000)
        assert len(ticks) == REMEMBERED_TICKS
        assert ticks[0].tick == (await find(harness)).last_tick
        assert await harness.store.ticks("digest", 5) == ticks[:5]

    async def test_a_tick_is_remembered_when_its_job_was_pruned(self, harness: Harness) -> None:
        await add(harness)
        harness.clock.advance(MINUTE)
        await fire(harness)
        [claimed] = await harness.claim()
        await harness.settle(claimed, Complete(None))
        harness.clock.advance(2 * DAY)
        await harness.store.prune()
        [tick] = await harness.store.ticks("digest")
        assert (tick.job, tick.state) == (claimed.id, None)
        assert await fire(harness) == [Fired.FIRED]

    async def test_many_ticks_fire_in_one_transaction(self, harness: Harness) -> None:
        for number in range(100):
            await add(harness, name=f"digest-{number:03}")
        harness.clock.advance(MINUTE)
        assert await fire(harness) == 100 * [Fired.FIRED]
        assert len(await harness.claim(demand=200)) == 100
        await harness.check_counters()

    async def test_whoever_waits_for_work_hears_of_a_tick(self, harness: Harness) -> None:
        one, other = harness.hearers()
        await add(harness)
        harness.clock.advance(MINUTE)
        async with other.changes([HintKind.WORK]) as hints:
            await fire(harness, one)
            async with asyncio.timeout(PATIENCE):
                hint = await anext(hints)
        assert hint.kind is HintKind.WORK
        assert not hint.queues or "default" in hint.queues

    async def test_racing_schedulers_make_one_job_for_each_tick(self, harness: Harness) -> None:
        stores = harness.pair()
        await add(harness, replace(MINUTELY, catchup=Catchup.ALL, overlap=Overlap.QUEUE))
        for _ in range(5):
            harness.clock.advance(2 * MINUTE)
            await asyncio.gather(*(fire(harness, stores[number % 2]) for number in range(4)))
        ticks = await harness.store.ticks("digest")
        assert len(ticks) == len({tick.job for tick in ticks}) == 10
        assert sorted(await jobs_made(harness)) == sorted(tick.job for tick in ticks)


# ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _there(record: ScheduleRecord | None) -> ScheduleRecord:
    if record is None:
        raise ScheduleNotFound
    return record


def _change(record: ScheduleRecord | None, now: datetime, edits: dict[str, object]) -> ScheduleRecord:
    return schedule.change(_there(record), edits, now)


def _pause(record: ScheduleRecord | None, now: datetime) -> ScheduleRecord:
    return schedule.pause(_there(record), now)


def _resume(record: ScheduleRecord | None, now: datetime) -> ScheduleRecord:
    return schedule.resume(_there(record), now)


def _remove(record: ScheduleRecord | None, now: datetime) -> ScheduleRecord | None:
    return schedule.remove(_there(record), now)


def _reset(record: ScheduleRecord | None, now: datetime) -> ScheduleRecord:
    return schedule.reset(_there(record), now)
