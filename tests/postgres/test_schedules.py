"""Firing schedules while connections are lost, and while somebody else's transaction is in the way."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial

import psycopg
import pytest
from msgspec.structs import replace

from holdfast import schedule
from holdfast.clock import SystemClock
from holdfast.job import NewJob
from holdfast.maintenance.scheduler import Scheduler
from holdfast.schedule import Catchup, Fired, Firing, Overlap, Plan, ScheduleRecord
from holdfast.store import DueSchedules, Filter, TaskDefinition
from holdfast.stores.postgres import PostgresStore
from holdfast.tick import tick_job
from tests.postgres.database import PATIENCE, until
from tests.postgres.jobs import new
from tests.postgres.moments import moments
from tests.postgres.proxy import CUTS, Harm, Proxy

SECOND = timedelta(seconds=1)
PLAN = Plan(task="digest", every=SECOND, catchup=Catchup.ALL, overlap=Overlap.QUEUE)
TASK = TaskDefinition(name="digest")


def _add(name: str, plan: Plan, record: ScheduleRecord | None, now: datetime) -> ScheduleRecord:
    """One that has been due for a while."""
    added = schedule.add(record, name, plan, now)
    return replace(added, next_tick=plan.timing.next_after(now - 3 * SECOND))


async def add(store: PostgresStore, name: str, plan: Plan = PLAN) -> None:
    await store.change_schedule(name, partial(_add, name, plan))


def firing_of(record: ScheduleRecord, now: datetime, task: TaskDefinition = TASK) -> Firing:
    passage = schedule.decide(record, now)
    assert passage is not None
    assert record.next_tick is not None
    jobs: list[NewJob] = [tick_job(record, tick, task, 0.0) for tick in passage.ticks]
    return Firing(record.name, record.revision, record.next_tick, passage, jobs)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name.lower())
async def test_a_firing_whose_answer_is_lost_has_happened_once_or_not_at_all(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, cut: Harm
) -> None:
    await far_store.due_schedules(1)
    number = 0
    async for moment in moments(proxy, far_store, cut):
        number += 1
        name = f"digest-{number}"
        await add(store, name)
        due: DueSchedules = await store.due_schedules(1_000)
        [record] = [each for each in due.schedules if each.name == name]
        firing = firing_of(record, due.now)
        with moment:
            [answer] = await far_store.fire([firing])
            # Done again after its answer was lost, it finds that somebody was faster: itself.
            assert answer in (Fired.FIRED, Fired.LATE)
        assert await store.fire([firing]) == [Fired.LATE]
        [after] = await store.schedules([name])
        ticks = await store.ticks(name)
        assert after.fired == len(ticks) == len(firing.jobs)
        assert {tick.job for tick in ticks} == {job.id for job in firing.jobs}
        assert len(await store.get([job.id for job in firing.jobs])) == len(firing.jobs)


async def test_a_unique_key_that_a_user_s_transaction_holds_delays_its_schedule_only(
    store: PostgresStore, migrated_database: str
) -> None:
    await store.publish_tasks([TASK, TaskDefinition(name="held", unique="all")])
    with psycopg.connect(migrated_database) as connection:
        store.enqueue_in(connection, [new(task="held", unique_key="all")])
        await add(store, "free")
        await add(store, "held", replace(PLAN, task="held"))
        running = asyncio.create_task(Scheduler(lambda: store, SystemClock(), lambda: 0.0).run())
        try:

            async def has_fired(name: str) -> bool:
                [record] = await store.schedules([name])
                return record.fired > 0

            await until(lambda: has_fired("free"))
            assert not await has_fired("held")
            connection.rollback()
            async with asyncio.timeout(PATIENCE):
                await until(lambda: has_fired("held"))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert await store.count(Filter(task="held")) == 1, "while it is unfinished, it is the job of all ticks"
