"""Tick: what is due becomes ready, what came too late goes to the dead letters."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from holdfast import lifecycle
from holdfast.job import FailureKind, JobState, Stage
from holdfast.lifecycle import GiveBack
from holdfast.store import Tick
from holdfast.testing.store_contract.harness import FAILURE, SECOND, Harness, ids_of, placeless

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class TickContract:
    async def test_a_job_ripens_when_it_is_due_and_not_before(self, harness: Harness) -> None:
        id = await harness.enqueue(delay=MINUTE)
        before = await harness.record(id)
        harness.clock.advance(MINUTE - SECOND)
        assert await harness.store.tick() == Tick(0, 0, SECOND)
        assert await harness.record(id) == before
        harness.clock.advance(SECOND)
        assert await harness.store.tick() == Tick(1, 0, None)
        assert placeless(await harness.record(id)) == placeless(lifecycle.ripen(before))
        await harness.check_counters()

    async def test_nobody_claims_what_is_not_due(self, harness: Harness) -> None:
        await harness.enqueue(delay=MINUTE)
        await harness.store.tick()
        assert await harness.claim() == []

    async def test_what_is_due_becomes_ready_in_the_order_of_its_times(self, harness: Harness) -> None:
        ids = {minutes: await harness.enqueue(delay=minutes * MINUTE) for minutes in (3, 1, 4, 2, 5)}
        await harness.pass_time(10 * MINUTE)
        assert ids_of(await harness.claim(demand=5)) == [ids[minutes] for minutes in (1, 2, 3, 4, 5)]

    async def test_a_tick_says_how_long_until_the_next_job_is_due(self, harness: Harness) -> None:
        assert await harness.store.tick() == Tick(0, 0, None)
        await harness.enqueue()
        assert await harness.store.tick() == Tick(0, 0, None)
        await harness.enqueue(delay=HOUR)
        await harness.enqueue(delay=MINUTE)
        assert await harness.store.tick() == Tick(0, 0, MINUTE)
        harness.clock.advance(MINUTE)
        assert await harness.store.tick() == Tick(1, 0, HOUR - MINUTE)

    async def test_a_retry_ripens_too(self, harness: Harness) -> None:
        id = await harness.ended(GiveBack(MINUTE, is_charged=True, failure=FAILURE))
        assert (await harness.store.tick()).next_in == MINUTE
        await harness.pass_time(MINUTE)
        record = await harness.record(id)
        assert (record.state, record.stage, record.attempt) == (JobState.RETRYING, Stage.READY, 1)

    async def test_an_expired_job_goes_dead_with_the_reason(self, harness: Harness) -> None:
        id = await harness.enqueue(expires_in=MINUTE)
        before = await harness.record(id)
        harness.clock.advance(MINUTE - SECOND)
        assert (await harness.store.tick()).expired == 0
        harness.clock.advance(SECOND)
        assert await harness.store.tick() == Tick(0, 1, None)
        assert placeless(await harness.record(id)) == placeless(lifecycle.expire(before, harness.clock.now()))
        [attempt] = await harness.store.attempts(id)
        assert attempt.failure == lifecycle.expired_failure(before)
        assert (attempt.run, attempt.started_at, attempt.worker) == (0, None, None)
        assert attempt.ended_at == harness.clock.now()
        await harness.check_counters()

    async def test_a_job_that_ran_before_expires_with_both_in_its_history(self, harness: Harness) -> None:
        id = await harness.ended(GiveBack(HOUR, is_charged=True, failure=FAILURE), expires_in=MINUTE)
        await harness.pass_time(HOUR)
        assert await harness.state(id) is JobState.DEAD
        kinds = [attempt.failure and attempt.failure.kind for attempt in await harness.store.attempts(id)]
        assert kinds == [FailureKind.ERROR, FailureKind.EXPIRED]

    async def test_a_scheduled_job_can_expire_before_it_is_due(self, harness: Harness) -> None:
        id = await harness.enqueue(delay=HOUR, expires_at=harness.clock.now() + MINUTE)
        harness.clock.advance(MINUTE)
        assert await harness.store.tick() == Tick(0, 1, None)
        assert await harness.state(id) is JobState.DEAD
        await harness.check_counters()

    async def test_what_is_due_and_expired_at_once_is_buried(self, harness: Harness) -> None:
        id = await harness.enqueue(delay=MINUTE, expires_in=SECOND)
        harness.clock.advance(HOUR)
        assert (await harness.store.tick()).expired == 1
        assert await harness.state(id) is JobState.DEAD

    async def test_a_running_job_does_not_expire(self, harness: Harness) -> None:
        claimed = await harness.start(expires_in=MINUTE)
        before = await harness.record(claimed.id)
        await harness.pass_time(HOUR)
        assert await harness.record(claimed.id) == before

    async def test_finished_jobs_do_not_expire(self, harness: Harness) -> None:
        id = await harness.completed(expires_in=MINUTE)
        before = await harness.record(id)
        await harness.pass_time(HOUR)
        assert await harness.record(id) == before

    async def test_a_tick_happens_in_a_paused_queue_too(self, harness: Harness) -> None:
        id = await harness.enqueue(delay=MINUTE)
        await harness.store.pause("default")
        await harness.pass_time(MINUTE)
        assert (await harness.record(id)).stage is Stage.READY

    async def test_many_due_jobs_ripen_in_a_few_ticks_and_in_order(self, harness: Harness) -> None:
        late = await harness.enqueue_many(1_500, delay=2 * MINUTE)
        early = await harness.enqueue_many(1_500, delay=MINUTE)
        harness.clock.advance(HOUR)
        ripened = 0
        while ripened < 3_000:
            tick = await harness.store.tick()
            assert tick.ripened > 0
            ripened += tick.ripened
            is_over = ripened == 3_000
            assert tick.next_in is None if is_over else tick.next_in is not None and tick.next_in <= timedelta(0)
        assert ids_of(await harness.claim(demand=3_000)) == early + late

    async def test_many_expired_jobs_are_buried_in_a_few_ticks(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(2_500, expires_in=MINUTE)
        harness.clock.advance(HOUR)
        buried = 0
        while buried < len(ids):
            tick = await harness.store.tick()
            assert tick.expired > 0
            buried += tick.expired
        assert (await harness.queue()).waiting == 0
        assert (await harness.store.tick()).expired == 0

    async def test_racing_ticks_move_each_job_once(self, harness: Harness) -> None:
        stores = harness.pair()
        ids = await harness.enqueue_many(50, delay=MINUTE)
        await harness.enqueue_many(50, expires_in=MINUTE)
        harness.clock.advance(MINUTE)
        ticks = await asyncio.gather(*(stores[n % 2].tick() for n in range(8)))
        assert sum(tick.ripened for tick in ticks) == 50
        assert sum(tick.expired for tick in ticks) == 50
        # Which of two ticks comes first to which of the jobs is open, and so is the order that they become ready in.
        assert sorted(ids_of(await harness.claim(demand=200))) == sorted(ids)
        await harness.check_counters()

    async def test_a_tick_does_not_touch_what_waits_its_turn(self, harness: Harness) -> None:
        id = await harness.enqueue(expires_in=HOUR)
        before = await harness.record(id)
        await harness.store.tick()
        assert await harness.record(id) == before
