"""One job for each tick, however many schedulers there are, and whoever of them dies while it fires."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import schedule
from holdfast.job import JobRecord
from holdfast.schedule import Catchup, Overlap, Plan, ScheduleRecord
from holdfast.store import Filter, Store, TaskDefinition
from tests.crash.nursery import Actor, Nursery
from tests.crash.scheduling import FastClock, open_at

SECOND = timedelta(seconds=1)
NAMES = [f"schedule-{number}" for number in range(4)]
PATIENCE = 60.0
SPEED = 40.0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    return f"sqlite:///{path}" if request.param == "sqlite" else request.getfixturevalue("migrated_database")


async def add_schedules(store: Store) -> dict[str, datetime]:
    """Each fires every second, whatever was missed; and where it stands at first."""
    await store.publish_tasks([TaskDefinition(name="digest")])
    plan = Plan(task="digest", every=SECOND, catchup=Catchup.ALL, overlap=Overlap.QUEUE)
    first: dict[str, datetime] = {}
    for name in NAMES:
        record = await store.change_schedule(name, partial(_add, name, plan))
        assert record is not None
        assert record.next_tick is not None
        first[name] = record.next_tick
    return first


def _add(name: str, plan: Plan, record: ScheduleRecord | None, now: datetime) -> ScheduleRecord:
    return schedule.add(record, name, plan, now)


async def until(look: Callable[[], object], beside: Store, number: int) -> None:
    """Do something again and again until each schedule has fired so often."""
    deadline = time.monotonic() + PATIENCE
    while min(record.fired for record in await beside.schedules()) < number:
        assert time.monotonic() < deadline, "they don't fire"
        look()
        await asyncio.sleep(0.02)


async def all_jobs(store: Store) -> list[JobRecord]:
    jobs: list[JobRecord] = []
    cursor: UUID | None = None
    while True:
        page = await store.page(Filter(), cursor, 1000)
        jobs += page.jobs
        cursor = page.next_cursor
        if cursor is None:
            return jobs


async def check(store: Store, first: dict[str, datetime]) -> None:
    """Each second from the first tick to the last has one job, and the schedules say the same."""
    jobs = await all_jobs(store)
    records = {record.name: record for record in await store.schedules()}
    for name, start in first.items():
        ticks = [datetime.fromisoformat(job.context["tick"]) for job in jobs if job.context["schedule"] == name]
        doubled = [tick for tick, number in Counter(ticks).items() if number > 1]
        assert not doubled, f"{name} fired twice for {doubled}"
        last = records[name].last_tick
        assert last is not None
        expected = {start + number * SECOND for number in range((last - start) // SECOND + 1)}
        assert set(ticks) == expected, f"{name} left out {sorted(expected - set(ticks))[:5]}"
        assert records[name].fired == len(ticks)
        assert records[name].next_tick == last + SECOND


async def test_three_schedulers_fire_each_second_once(nursery: Nursery, url: str) -> None:
    store = open_at(url, None)
    with ExitStack() as stack:
        first = await add_schedules(store)
        for actor in [stack.enter_context(nursery.start("run_scheduler", url=url)) for _ in range(3)]:
            actor.hear("ready")
        await until(lambda: None, store, 4)
    await check(store, first)
    late = [job.created_at - datetime.fromisoformat(job.context["tick"]) for job in await all_jobs(store)]
    assert min(late) >= timedelta(0), "a job came before its tick"
    await store.close()


async def test_schedulers_that_race_all_the_time_make_one_job_for_each_tick(nursery: Nursery, url: str) -> None:
    since = time.time()
    store = open_at(url, FastClock(since, SPEED))
    first = await add_schedules(store)
    with ExitStack() as stack:
        options = {"url": url, "since": since, "speed": SPEED}
        for actor in [stack.enter_context(nursery.start("fire_all_the_time", **options)) for _ in range(3)]:
            actor.hear("ready")
        await until(lambda: None, store, 120)
    await check(store, first)
    await store.close()


async def test_a_scheduler_that_is_killed_loses_no_tick_and_doubles_none(nursery: Nursery, url: str) -> None:
    since, chance = time.time(), random.Random()
    store = open_at(url, FastClock(since, SPEED))
    first = await add_schedules(store)
    kills = 0

    def start(stack: ExitStack) -> Actor:
        actor = stack.enter_context(nursery.start("fire_all_the_time", url=url, since=since, speed=SPEED))
        actor.hear("ready")
        return actor

    with ExitStack() as stack:
        alive = [start(stack), start(stack)]

        def kill_one() -> None:
            nonlocal kills
            time.sleep(chance.uniform(0, 0.05))  # the moment is left to chance, and there are many of them
            alive.pop(0).kill()
            kills += 1
            alive.append(start(stack))

        number = 150
        await until(kill_one, store, number)
        while kills < 5:  # on a slow machine each takes long
            number += 10
            await until(kill_one, store, number)
    await check(store, first)
    await store.close()
