"""Schedules as users see them: declared in the code, steered at run time, fired by whoever is there."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast import (
    Context,
    Holdfast,
    InvalidOption,
    InvalidPayload,
    JobState,
    ScheduleNotFound,
    Unique,
    UnknownTask,
)
from holdfast.job import JobRecord
from holdfast.maintenance.herald import Herald
from holdfast.maintenance.scheduler import Scheduler
from holdfast.schedule import ORPHANED_AFTER, Plan
from holdfast.store import Filter, Retention
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

PATIENCE = 30.0


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory://")


# ── in the code ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_decorators_make_tasks_with_schedules_of_the_same_name(app: Holdfast) -> None:
    @app.cron("0 9 * * mon-fri", tz="Europe/Paris", catchup="skip", overlap="queue", jitter="10m", queue="mail")
    def digest() -> None: ...

    @app.every(minutes=5)
    async def poll_bank() -> None: ...

    @app.at("2026-12-31 23:59:59", tz="Europe/Paris")
    async def greet(name: str = "all") -> None: ...

    plans = app.engine.plans()
    assert digest.settings.queue == "mail"
    assert plans["digest"] == Plan(
        task="digest",
        cron="0 9 * * mon-fri",
        tz="Europe/Paris",
        catchup="skip",  # type: ignore[arg-type]
        overlap="queue",  # type: ignore[arg-type]
        jitter=timedelta(minutes=10),
    )
    assert plans["poll_bank"] == Plan(task="poll_bank", every=timedelta(minutes=5))
    assert plans["greet"].at == datetime(2026, 12, 31, 22, 59, 59, tzinfo=UTC)


def test_a_task_may_have_several_schedules(app: Holdfast) -> None:
    @app.cron("0 8 * * *", name="early", args={"tenant": "acme"})
    @app.every("1h", args={"tenant": "other"})
    @app.task
    async def report(tenant: str) -> None: ...

    app.at(datetime(2030, 1, 1, tzinfo=UTC), name="new year", args={"tenant": "x"}, queue="slow", priority="low")(
        report
    )
    plans = app.engine.plans()
    assert {name: plan.args_json for name, plan in plans.items()} == {
        "early": '{"tenant":"acme"}',
        "report": '{"tenant":"other"}',
        "new year": '{"tenant":"x"}',
    }
    assert {plan.task for plan in plans.values()} == {"report"}
    assert (plans["new year"].queue, plans["new year"].priority) == ("slow", 2)
    assert report.settings.queue == "default"


async def test_bound_tasks_are_scheduled_too(app: Holdfast) -> None:
    @app.every("1m", bind=True)
    async def poll(ctx: Context) -> str:
        return str(ctx.context["tick"])

    async with app.testing() as t:
        t.advance("1m")
        assert await t.arun_all() == 1
        [job] = t.jobs(poll)
        assert await job.aresult() == t.now.replace(second=0, microsecond=0).isoformat()


def _plain() -> None: ...


def _needy(tenant: str) -> None: ...


@pytest.mark.parametrize(
    ("declare", "hint"),
    [
        (lambda hf: hf.cron("0 9 * *"), "five"),
        (lambda hf: hf.cron("0 9 * * *", tz="Paris"), "Europe/Paris"),
        (lambda hf: hf.cron("0 9 * * *", jitters="1m"), "jitter"),
        (lambda hf: hf.cron("0 9 * * *", catchup="twice"), "'once'"),
        (lambda hf: hf.cron("0 9 * * *", overlap="never"), "'queue'"),
        (lambda hf: hf.cron("*/5 * * * *", jitter="10m"), "jitter"),
        (lambda hf: hf.cron("0 9 * * *", catchup="all"), "overlap='queue'"),
        (lambda hf: hf.every("10ms"), "shortest"),
        (lambda hf: hf.every(), "every"),
        (lambda hf: hf.every("1m", minutes=1), "not both"),
        (lambda hf: hf.every(minutes="five"), "numbers"),
        (lambda hf: hf.every("1h", jitter="2h"), "jitter"),
        (lambda hf: hf.every("1h", tz="Europe/Paris"), "tz="),
        (lambda hf: hf.at("tomorrow"), "not a time"),
        (lambda hf: hf.at(3), "datetime"),
        (lambda hf: hf.at("9999-01-01"), "1970"),
        (lambda hf: hf.every("1h", args=["x"]), "by name"),
        (lambda hf: hf.every("1h")(_needy), "tenant"),
        (lambda hf: hf.every("1h", args={"tenant": "a", "other": 1})(_needy), "other"),
        (lambda hf: hf.every("1h", queue="")(_plain), "queue"),
        (lambda hf: hf.every("1h", timeout="1m")(hf.task(_plain)), "@hf.task"),
        (lambda hf: hf.every("1h")(hf.every("2h")(_plain)), "Two schedules"),
        (lambda hf: hf.every("1h")(Holdfast("memory://").task(_plain)), "another app"),
    ],
)
def test_bad_input_is_refused_at_import_with_what_to_do(app: Holdfast, declare: Any, hint: str) -> None:
    with pytest.raises(InvalidOption, match=hint):
        declare(app)


async def test_arguments_of_a_wrong_type_are_refused_when_the_worker_starts(app: Holdfast) -> None:
    @app.every("1h", args={"number": "many"})
    def count(number: int) -> None: ...

    with pytest.raises(InvalidOption, match="args= does not fit"):
        await app.apublish_tasks()


# ── at run time ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_schedule_is_steered_from_its_beginning_to_its_end(hf: Holdfast) -> None:
    @hf.task
    async def report(tenant: str, kind: str = "short") -> None: ...

    await hf.apublish_tasks()
    added = await hf.schedules.aadd("acme", "report", cron="0 9 * * *", tz="Europe/Paris", args={"tenant": "acme"})
    assert (added.source, added.plan.cron, added.next_tick) == (
        "runtime",
        "0 9 * * *",
        (await hf.schedules.anext("acme", 1))[0],
    )
    assert [record.name for record in await hf.schedules.aall()] == ["acme"]
    changed = await hf.schedules.achange("acme", every="1h", args={"tenant": "acme", "kind": "long"}, queue="slow")
    assert (changed.plan.cron, changed.plan.every, changed.plan.queue) == (None, timedelta(hours=1), "slow")
    ticks = await hf.schedules.anext("acme", 3)
    assert [later - earlier for earlier, later in pairwise(ticks)] == 2 * [timedelta(hours=1)]
    assert (await hf.schedules.apause("acme")).is_paused
    assert await hf.schedules.anext("acme") == []
    assert (await hf.schedules.aresume("acme")).next_tick is not None
    job = await hf.schedules.arun("acme")
    record = await hf.jobs.aget(job.id)
    assert (record.args, record.queue, record.context) == (
        {"tenant": "acme", "kind": "long"},
        "slow",
        {"schedule": "acme"},
    )
    await hf.schedules.aremove("acme")
    assert await hf.schedules.aall() == []
    with pytest.raises(ScheduleNotFound):
        await hf.schedules.aget("acme")


async def test_a_service_without_the_code_schedules_by_the_published_definition(hf: Holdfast) -> None:
    @hf.task(queue="mail", priority=7)
    async def report(tenant: str) -> None: ...

    await hf.apublish_tasks()
    if hf.url == "memory://":
        pytest.skip("nobody else sees this store")
    other = Holdfast(hf.url)
    try:
        await other.schedules.aadd("acme", "report", every="1h", args={"tenant": "acme"})
        job = await other.schedules.arun("acme")
        record = await hf.jobs.aget(job.id)
        assert (record.queue, record.priority, record.args) == ("mail", 7, {"tenant": "acme"})
        with pytest.raises(InvalidPayload, match="tenant"):
            await other.schedules.aadd("bad", "report", every="1h")
        with pytest.raises(UnknownTask, match="Did you mean 'report'"):
            await other.schedules.aadd("bad", "repot", every="1h")
    finally:
        await other.aclose()


async def test_what_was_changed_or_removed_stays_so_when_a_worker_starts_until_it_is_reset(hf: Holdfast) -> None:
    @hf.every("1h")
    async def poll() -> None: ...

    @hf.every("1h")
    async def tidy() -> None: ...

    await hf.apublish_tasks()
    await hf.schedules.achange("poll", every="2h")
    await hf.schedules.aremove("tidy")
    await hf.apublish_tasks()
    poll_record, tidy_record = await hf.schedules.aall()
    assert (poll_record.plan.every, poll_record.declared) == (timedelta(hours=2), hf.engine.plans()["poll"])
    assert tidy_record.is_removed
    with pytest.raises(ScheduleNotFound, match="reset"):
        await hf.schedules.arun("tidy")
    for name in ("poll", "tidy"):
        back = await hf.schedules.areset(name)
        assert (back.override, back.is_removed, back.plan.every) == (None, False, timedelta(hours=1))


async def test_a_time_that_is_changed_is_one_of_the_schedule_s_zone(hf: Holdfast) -> None:
    @hf.task
    async def greet() -> None: ...

    await hf.apublish_tasks()
    await hf.schedules.aadd("greet", "greet", at="2131-01-01 00:00", tz="Europe/Paris")
    changed = await hf.schedules.achange("greet", at="2132-07-01 00:00")
    assert (changed.plan.at, changed.plan.tz) == (datetime(2132, 6, 30, 22, tzinfo=UTC), "Europe/Paris")
    with pytest.raises(InvalidOption, match="together with tz"):
        await hf.schedules.achange("greet", tz="Asia/Tokyo")
    changed = await hf.schedules.achange("greet", at="2132-07-01 00:00", tz="Asia/Tokyo")
    assert (changed.plan.at, changed.plan.tz) == (datetime(2132, 6, 30, 15, tzinfo=UTC), "Asia/Tokyo")
    assert await hf.schedules.anext("greet") == [changed.plan.at]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({}, "one of cron"),
        ({"cron": "0 9 * * *", "every": "1h"}, "both"),
        ({"every": "1h", "evry": "1h"}, "every"),
        ({"every": "1h", "args": 3}, "by name"),
        ({"every": "1h", "priority": 11}, "priority"),
        ({"cron": "x"}, "five"),
    ],
)
async def test_bad_input_at_run_time_changes_nothing(app: Holdfast, options: Any, hint: str) -> None:
    @app.task
    async def report() -> None: ...

    await app.apublish_tasks()
    with pytest.raises(InvalidOption, match=hint):
        await app.schedules.aadd("bad", "report", **options)
    with pytest.raises(InvalidOption, match="something to change"):
        await app.schedules.achange("bad")
    assert await app.schedules.aall() == []


# ── firing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _jobs(hf: Holdfast) -> list[JobRecord]:
    return (await hf.engine.store.page(Filter(), None, 1000)).jobs[::-1]


async def test_an_embedded_worker_fires_and_runs_what_is_scheduled(hf: Holdfast) -> None:
    ran: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    @hf.every("1s", bind=True)
    async def poll(ctx: Context) -> None:
        ran.put_nowait(ctx.context)

    async with hf.worker(), asyncio.timeout(PATIENCE):
        contexts = [await ran.get() for _ in range(3)]
    ticks = [datetime.fromisoformat(context["tick"]) for context in contexts]
    assert ticks == sorted(set(ticks))
    assert all(tick.microsecond == 0 for tick in ticks)
    record = await hf.schedules.aget("poll")
    assert record.fired >= 3
    assert record.last_tick is not None
    jobs = await _jobs(hf)
    assert len({job.context["tick"] for job in jobs}) == len(jobs)
    # On time, as far as such a machine can: each job was made after its tick, and soon.
    late = [job.created_at - datetime.fromisoformat(job.context["tick"]) for job in jobs]
    assert min(late) >= timedelta(0)


async def test_a_schedule_that_is_added_while_a_worker_runs_fires_soon(hf: Holdfast) -> None:
    ran = asyncio.Event()

    @hf.task
    async def poll() -> None:
        ran.set()

    async with hf.worker(), asyncio.timeout(PATIENCE):
        await hf.schedules.aadd("poll", poll, every="1s")
        await ran.wait()


class Stand:
    """A scheduler on a store of its own whose clock a test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.hf = Holdfast("memory://")
        store = MemoryStore(self.clock, Retention())
        self.hf.engine.__dict__["_store"] = store
        self.store = store
        self.scheduler = Scheduler(lambda: store, self.clock, chance=lambda: 0.5)

    async def act(self) -> float:
        while (pause := await self.scheduler.act()) == 0.0:
            pass
        return pause


@pytest.fixture
def stand() -> Stand:
    return Stand()


async def test_a_scheduler_sleeps_until_shortly_before_the_next_tick_and_not_long(stand: Stand) -> None:
    assert await stand.act() == 10.0
    stand.hf.every("4s")(_plain)
    await stand.hf.apublish_tasks()
    pause = await stand.act()
    assert 0 < 1.2 * pause < 4.0, "a nap may be a fifth longer"


async def test_jitter_delays_the_job_and_not_the_tick(stand: Stand) -> None:
    stand.hf.every("1h", jitter="10m")(_plain)
    await stand.hf.apublish_tasks()
    stand.clock.advance("1h")
    await stand.hf.apublish_tasks()
    await stand.act()
    [job] = await _jobs(stand.hf)
    assert job.due_at == stand.clock.now() + timedelta(minutes=5)
    assert job.context == {"schedule": "_plain", "tick": stand.clock.now().isoformat()}


async def test_a_tick_has_no_idempotency_key_but_is_unique_if_its_task_is(stand: Stand) -> None:
    stand.hf.every("1h", name="keyed", idempotency_key="always", overlap="queue")(_plain)
    stand.hf.every("1h", name="unique", unique=Unique("all"), overlap="queue")(_plain)
    await stand.hf.apublish_tasks()
    for _ in range(3):
        stand.clock.advance("1h")
        await stand.hf.apublish_tasks()
        await stand.act()
    jobs = await _jobs(stand.hf)
    assert sorted(job.task for job in jobs) == ["keyed", "keyed", "keyed", "unique"]


async def test_one_that_cannot_fire_does_not_hold_up_the_others(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    stand.hf.every("1h")(_plain)
    await stand.hf.apublish_tasks()
    await stand.store.declare_schedules({"unknown": Plan(task="nobody has it", every=timedelta(hours=1))})
    stand.clock.advance("1h")
    await stand.hf.apublish_tasks()
    await stand.store.declare_schedules({"unknown": Plan(task="nobody has it", every=timedelta(hours=1))})
    with caplog.at_level(logging.WARNING, "holdfast.maintenance"):
        assert 0.0 < await stand.act() <= 1.0, "others may be due soon"
    assert [job.task for job in await _jobs(stand.hf)] == ["_plain"]
    assert "schedule unknown can't fire now" in caplog.text


async def test_what_is_dropped_is_said_in_the_log(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    stand.hf.every("1m", catchup="all", overlap="queue")(_plain)
    await stand.hf.apublish_tasks()
    stand.clock.advance("2d")
    await stand.hf.apublish_tasks()
    with caplog.at_level(logging.WARNING, "holdfast.maintenance"):
        await stand.act()
    assert "the oldest are dropped" in caplog.text
    assert await stand.store.count(Filter()) == 1000


async def test_a_schedule_lives_as_long_as_somebody_says_that_it_is_in_the_code(stand: Stand) -> None:
    stand.hf.every("1h")(_plain)
    plans = stand.hf.engine.plans()
    herald = Herald(lambda: stand.store, stand.clock, lambda: [(plans, 0.0)])
    await stand.hf.apublish_tasks()
    for _ in range(130):
        stand.clock.advance("1m")
        await herald.act()
        await stand.act()
    record = await stand.hf.schedules.aget("_plain")
    assert (record.fired, record.skipped) == (1, 1)
    assert not record.is_orphaned(stand.clock.now())
    stand.clock.advance(ORPHANED_AFTER)
    assert (await stand.hf.schedules.aget("_plain")).is_orphaned(stand.clock.now())


# ── in tests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_time_that_passes_in_a_test_fires_schedules(app: Holdfast) -> None:
    @app.cron("0 * * * *")
    def tidy() -> str:
        return "tidy"

    with app.testing() as t:
        t.assert_not_enqueued(tidy)
        t.advance("1h")
        t.assert_enqueued(tidy)
        assert t.run_all() == 1
        t.advance("3h")
        assert t.run_all() == 1, "what was missed is made up for once"
        assert [job.result() for job in t.jobs(tidy)] == ["tidy", "tidy"]
        app.schedules.pause("tidy")
        t.advance("3h")
        assert t.run_all() == 0
        app.schedules.add("another", tidy, every="1m")
        t.advance("1m")
        assert t.run_all() == 1


async def test_time_that_passes_on_a_running_loop_fires_schedules_too(app: Holdfast) -> None:
    @app.every("10m", catchup="all", overlap="queue")
    async def poll() -> None: ...

    async with app.testing() as t:
        t.advance("1h")
        assert await t.arun_all() == 6
        assert {job.state for job in t.enqueued} == {JobState.COMPLETED}
