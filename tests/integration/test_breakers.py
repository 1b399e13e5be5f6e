"""Breakers as users see them: around tasks and blocks, shared through the database, and never charged to a job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from holdfast import (
    Breaker,
    BreakerNotFound,
    BreakerOpen,
    BreakerState,
    Cancel,
    GiveUp,
    Holdfast,
    InvalidOption,
    InvalidPayload,
    JobState,
    PoolFull,
    Rate,
    RateLimited,
    ReasonKind,
    Retry,
    RunningLoop,
    Snooze,
    SoftTimeout,
    StoreUnavailable,
    TryAgain,
    breaker,
)
from holdfast.breaker import Finding, Wait
from holdfast.job import Stage
from holdfast.store import Store
from holdfast.worker import turnstile
from holdfast.worker.station import Station

PATIENCE = 30.0
ONCE_A_SECOND = Retry(5, base="1s", jitter=False)


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory://")


async def until(look: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await look():
                return
            await asyncio.sleep(0.02)


async def state_of(hf: Holdfast, name: str = "stripe") -> BreakerState:
    return next(record.state for record in await hf.breakers.alist() if record.name == name)


async def fail(stripe: Breaker, times: int = 1, error: type[BaseException] = ConnectionError) -> None:
    for _ in range(times):
        with pytest.raises(error):
            async with stripe:
                raise error


class Provider:
    """What is behind a breaker."""

    def __init__(self) -> None:
        self.is_down = True
        self.calls: list[int] = []

    def call(self, number: int) -> int:
        self.calls.append(number)
        if self.is_down:
            raise ConnectionError("it is down")
        return number


# ── in the code ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_makes_no_sense_is_refused_where_it_is_written(app: Holdfast) -> None:
    app.breaker("stripe")
    with pytest.raises(InvalidOption, match="two breakers 'stripe'"):
        app.breaker("stripe")
    with pytest.raises(InvalidOption, match=r"breaker\(on\)"):
        app.breaker("one", on=[5])  # type: ignore[list-item]
    with pytest.raises(InvalidOption, match=r"breaker\(ignore\)"):
        app.breaker("one", ignore=ConnectionError)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"breaker\(name\)"):
        app.breaker("")


def test_a_task_takes_a_breaker_of_its_own_app(app: Holdfast) -> None:
    def charge() -> None: ...

    with pytest.raises(InvalidOption, match="breaker= takes a breaker"):
        app.task(breaker="stripe")(charge)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="another app"):
        app.task(breaker=Holdfast("memory://").breaker("stripe"))(charge)


def test_the_definition_of_a_task_names_its_breaker(app: Holdfast) -> None:
    @app.task(breaker=app.breaker("stripe"))
    def charge() -> None: ...

    @app.task
    def other() -> None: ...

    assert [definition.breaker for definition in app.engine.definitions()] == ["stripe", None]


@pytest.mark.parametrize(
    "signal",
    [GiveUp(), Cancel(), Snooze(1), RateLimited(1), PoolFull(), BreakerOpen("other", 1), InvalidPayload()],
    ids=lambda signal: type(signal).__name__,
)
async def test_what_is_no_outage_is_not_counted(app: Holdfast, signal: Exception) -> None:
    stripe = app.breaker("stripe", failures=1)
    with pytest.raises(type(signal)):
        async with stripe:
            raise signal
    async with stripe:
        pass


@pytest.mark.parametrize("error", [ConnectionError, TryAgain, SoftTimeout, TimeoutError])
async def test_what_would_be_retried_is_counted(app: Holdfast, error: type[BaseException]) -> None:
    stripe = app.breaker("stripe", failures=1)
    await fail(stripe, error=error)
    assert await state_of(app) is BreakerState.OPEN


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_being_stopped_is_not_counted(app: Holdfast, error: type[BaseException]) -> None:
    stripe = app.breaker("stripe", failures=1)
    with pytest.raises(error):
        async with stripe:
            raise error
    async with stripe:
        pass


async def test_only_exceptions_on_the_list_count_and_never_those_to_ignore(app: Holdfast) -> None:
    stripe = app.breaker("stripe", failures=1, on=[LookupError], ignore=[KeyError])
    await fail(stripe, error=ValueError)
    await fail(stripe, error=KeyError)
    await fail(stripe, error=SoftTimeout)
    with pytest.raises(ExceptionGroup):
        async with stripe:
            raise ExceptionGroup("both", [ValueError(), KeyError()])
    async with stripe:
        pass
    with pytest.raises(ExceptionGroup):
        async with stripe:
            raise ExceptionGroup("both", [ValueError(), ExceptionGroup("inner", [IndexError()])])
    assert await state_of(app) is BreakerState.OPEN
    bank = app.breaker("bank", failures=1, on=[TimeoutError])
    await fail(bank, error=SoftTimeout)
    assert await state_of(app, "bank") is BreakerState.OPEN, "the time that a task has was over"


# ── around a block ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_block_is_refused_everywhere_once_it_has_failed_too_often(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", failures=3, reset="1h")
    await fail(stripe, 3)
    with pytest.raises(BreakerOpen, match="'stripe' is open") as refused:
        async with stripe:
            raise AssertionError("it is not called")
    assert refused.value.breaker == "stripe"
    assert timedelta(minutes=59) < refused.value.delay <= timedelta(minutes=75)
    if hf.url != "memory://":
        other = Holdfast(hf.url)  # as another process would have it
        try:
            with pytest.raises(BreakerOpen):
                async with other.breaker("stripe", failures=3, reset="1h"):
                    raise AssertionError("it is not called")
        finally:
            await other.aclose()
    await hf.breakers.areset("stripe")
    async with stripe:
        pass


async def test_a_block_in_a_thread_passes_and_is_refused_alike(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", failures=2)

    def use() -> int:
        for _ in range(2):
            with contextlib.suppress(ConnectionError), stripe:
                raise ConnectionError
        with pytest.raises(BreakerOpen), stripe:
            raise AssertionError("it is not called")
        return 1

    assert await asyncio.to_thread(use) == 1


async def test_a_synchronous_block_is_refused_on_an_event_loop(app: Holdfast) -> None:
    stripe = app.breaker("stripe")
    with pytest.raises(RunningLoop, match="async with"), stripe:
        raise AssertionError("it is not entered")


async def test_a_success_in_between_starts_the_row_anew(app: Holdfast) -> None:
    stripe = app.breaker("stripe", failures=2)
    for _ in range(3):
        await fail(stripe)
        async with stripe:
            pass
    assert await state_of(app) is BreakerState.CLOSED


async def test_blocks_within_a_block_pass_with_it_and_count_once(app: Holdfast) -> None:
    stripe = app.breaker("stripe", failures=2, reset="100ms")

    async def inner() -> None:
        async with stripe:
            raise ConnectionError

    async def outer() -> None:
        async with stripe, asyncio.TaskGroup() as group:
            group.create_task(inner())
            group.create_task(inner())

    with pytest.raises(ExceptionGroup):
        await outer()
    [record] = await app.breakers.alist()
    assert (record.state, record.failures) == (BreakerState.CLOSED, 1)


async def test_what_a_block_has_started_and_left_behind_passes_by_itself(app: Holdfast) -> None:
    stripe = app.breaker("stripe", failures=1)
    go_on = asyncio.Event()

    async def straggle() -> None:
        await go_on.wait()
        async with stripe:
            raise AssertionError("it is not called")

    async with stripe:
        straggler = asyncio.create_task(straggle())
    await fail(stripe)
    go_on.set()
    with pytest.raises(BreakerOpen):
        await straggler


async def test_only_probes_pass_when_the_reset_time_is_over(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", failures=1, reset="100ms", probes=2)
    await fail(stripe)
    inside = asyncio.Event()
    leave = asyncio.Event()
    passed = refused = 0

    async def use() -> None:
        nonlocal passed, refused
        try:
            async with stripe:
                passed += 1
                if passed == 2:
                    inside.set()
                await leave.wait()
        except BreakerOpen:
            refused += 1

    async def is_half_open() -> bool:
        return await state_of(hf) is BreakerState.HALF_OPEN

    await until(is_half_open)
    users = [asyncio.create_task(use()) for _ in range(10)]

    async def are_refused() -> bool:
        return refused == 8

    async with asyncio.timeout(PATIENCE):
        await inside.wait()
    await until(are_refused)
    [record] = await hf.breakers.alist()
    assert (passed, record.probes) == (2, 2)
    leave.set()
    await asyncio.gather(*users)
    assert await state_of(hf) is BreakerState.CLOSED


async def test_a_database_that_is_away_lets_pass_what_it_does_not_forbid(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> None:
        raise StoreUnavailable

    stripe = app.breaker("stripe", failures=1)
    for verb in ("declare_breakers", "breakers", "report_breakers", "enter_breaker"):
        monkeypatch.setattr(app.engine.store, verb, refuse)
    with caplog.at_level(logging.WARNING, "holdfast.breaker"):
        await fail(stripe, 3)
    assert "can't be asked" in caplog.text
    monkeypatch.undo()
    await fail(stripe)
    assert await state_of(app) is BreakerState.OPEN, "what could not be told was told later"


# ── around tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_jobs_of_an_open_breaker_wait_uncharged_and_run_when_it_is_closed(hf: Holdfast) -> None:
    provider = Provider()
    stripe = hf.breaker("stripe", failures=2, reset="500ms")

    @hf.task(breaker=stripe, retry=Retry(5, base="100ms", jitter=False))
    async def charge(number: int) -> int:
        return provider.call(number)

    async with hf.worker(concurrency=1):
        jobs = [await charge.aenqueue(number) for number in range(10)]

        async def has_opened() -> bool:
            return any(record.openings > 1 for record in await hf.breakers.alist())

        await until(has_opened)
        called = len(provider.calls)
        assert called <= 4, "two failures opened it, and then there were probes"
        provider.is_down = False
        results = [await job.aresult(timeout=PATIENCE) for job in jobs]
    assert results == list(range(10))
    records = [await job.arecord() for job in jobs]
    assert sum(record.attempt for record in records) == 10 + 2, "the two failures that opened it were charged"
    assert any(record.waits for record in records)
    assert await state_of(hf) is BreakerState.CLOSED


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_a_block_in_a_task_gives_its_job_back_uncharged(hf: Holdfast, kind: str) -> None:
    stripe = hf.breaker("stripe", failures=1, reset="1h")
    if kind == "loop":

        @hf.task(name="charge")
        async def on_loop() -> str:
            async with stripe:
                return "charged"

        charge: Callable[[], Awaitable[object]] = on_loop.aenqueue
    else:

        @hf.task(name="charge")
        def in_thread() -> str:
            with stripe:
                return "charged"

        charge = in_thread.aenqueue
    await fail(stripe)
    async with hf.worker(concurrency=2):
        await charge()

        async def has_waited() -> bool:
            [record] = (await hf.jobs.apage()).jobs
            return record.waits == 1 and record.state is JobState.PENDING

        await until(has_waited)
    [record] = (await hf.jobs.apage()).jobs
    assert (record.attempt, record.error_type) == (0, None)
    assert record.due_at - record.created_at > timedelta(minutes=59)
    assert record.breaker == "stripe"
    await hf.breakers.areset("stripe")
    async with hf.worker(concurrency=2):
        await until(lambda: _all_completed(hf))


async def _all_completed(hf: Holdfast) -> bool:
    return {record.state for record in (await hf.jobs.apage()).jobs} == {JobState.COMPLETED}


async def test_a_reset_lets_go_on_what_waits_also_without_a_worker(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", reset="1h")

    @hf.task(breaker=stripe)
    async def charge() -> None: ...

    await hf.engine.publish_tasks()
    await hf.breakers.aopen("stripe")
    jobs = await hf.aenqueue_many(charge.call() for _ in range(5))
    later = await charge.options(delay="1h").aenqueue()

    async def have_waited() -> bool:
        return all([(await job.arecord()).breaker == "stripe" for job in jobs])

    async with hf.worker(concurrency=2):
        await until(have_waited)
    explanation = await jobs[0].aexplain()
    assert explanation.kinds[:2] == (ReasonKind.BREAKER, ReasonKind.SNOOZED)
    await hf.breakers.areset("stripe")
    assert {(await job.arecord()).stage for job in jobs} == {Stage.READY}
    assert (await later.arecord()).stage is Stage.SCHEDULED, "it waits for its time, not for the breaker"


async def test_what_a_breaker_has_put_off_uses_nothing_of_a_rate(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", reset="1h")

    @hf.task(breaker=stripe, rate=Rate(2, "1h"))
    async def charge() -> None: ...

    await hf.engine.publish_tasks()
    await hf.breakers.aopen("stripe")
    jobs = await hf.aenqueue_many(charge.call() for _ in range(5))

    async def have_waited() -> bool:
        return all([(await job.arecord()).waits for job in jobs])

    async def are_completed() -> bool:
        return [(await job.arecord()).state for job in jobs].count(JobState.COMPLETED) == 2

    async with hf.worker(concurrency=2):
        await until(have_waited)
        await hf.breakers.areset("stripe")
        await until(are_completed)

        async def is_throttled() -> bool:
            explanations = [await job.aexplain() for job in jobs]
            return [each.kinds[:1] for each in explanations].count((ReasonKind.RATE,)) == 3

        await until(is_throttled)


async def test_what_waits_goes_on_when_a_probe_has_closed_the_breaker(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", failures=1, reset="1h")

    @hf.task(breaker=stripe)
    async def charge() -> str:
        return "charged"

    await hf.engine.publish_tasks()
    await hf.breakers.aopen("stripe", "2s")
    jobs = [await charge.aenqueue() for _ in range(8)]

    async def have_waited() -> bool:
        return all([(await job.arecord()).waits for job in jobs])

    async def is_half_open() -> bool:
        return await state_of(hf) is BreakerState.HALF_OPEN

    async with hf.worker(concurrency=2):
        await until(have_waited)
        await until(is_half_open)
        probe = await charge.aenqueue()
        for job in (probe, *jobs):
            assert await job.aresult(timeout=PATIENCE) == "charged"
    assert await state_of(hf) is BreakerState.CLOSED


def test_breakers_met_in_a_group_are_waited_for_by_name(app: Holdfast) -> None:
    evil = BreakerOpen("evil", "1s")
    evil.breaker = "not\0storable"

    @app.task
    async def fail(which: str) -> None:
        soon, late = BreakerOpen("soon", "1s"), BreakerOpen("late", "2s")
        raise {"one": soon, "group": ExceptionGroup("both", [soon, late]), "evil": evil}[which]

    with app.testing() as t:
        jobs = [fail.enqueue(which) for which in ("one", "group", "evil")]
        t.run_all()
        assert [job.record().breaker for job in jobs] == ["soon", "late", None]


async def test_a_closed_breaker_costs_no_question(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def watched(verb: str) -> Callable[..., Awaitable[object]]:
        plain = getattr(app.engine.store, verb)

        async def ask(*arguments: object) -> object:
            asked.append(verb)
            return await plain(*arguments)

        return ask

    stripe = app.breaker("stripe")

    @app.task(breaker=stripe)
    async def charge(number: int) -> int:
        return number

    async with app.worker(concurrency=4):
        await (await charge.aenqueue(-1)).aresult(timeout=PATIENCE)
        for verb in ("enter_breaker", "report_breakers", "declare_breakers"):
            monkeypatch.setattr(app.engine.store, verb, watched(verb))
        jobs = await app.aenqueue_many(charge.call(number) for number in range(200))
        for job in jobs:
            await job.aresult(timeout=PATIENCE)
    assert asked == []


async def test_a_job_that_may_run_only_once_waits_too_because_it_has_not_started(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", reset="1h")

    @hf.task(breaker=stripe, delivery="at_most_once")
    async def charge() -> None: ...

    await hf.engine.publish_tasks()
    await hf.breakers.aopen("stripe")
    async with hf.worker(concurrency=2):
        job = await charge.aenqueue()

        async def has_waited() -> bool:
            return (await job.arecord()).waits == 1

        await until(has_waited)
    assert (await job.arecord()).state is JobState.PENDING


async def test_a_worker_that_stops_gives_its_permit_back(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", failures=1, reset="100ms")
    started = asyncio.Event()

    @hf.task(breaker=stripe)
    async def charge() -> None:
        started.set()
        await asyncio.Event().wait()

    await fail(stripe)
    await charge.aenqueue()
    async with hf.worker(concurrency=1, grace="0s"):
        async with asyncio.timeout(PATIENCE):
            await started.wait()
        [record] = await hf.breakers.alist()
        assert (record.state, record.probes) == (BreakerState.HALF_OPEN, 1)
    [record] = await hf.breakers.alist()
    assert (record.state, record.probes) == (BreakerState.HALF_OPEN, 0)


async def test_a_job_that_waits_for_a_permit_is_given_back_when_its_worker_stops(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    stripe = app.breaker("stripe", failures=1, reset="100ms")
    asked, answer = asyncio.Event(), asyncio.Event()
    plain: Callable[..., Awaitable[object]] = app.engine.store.enter_breaker

    async def slowly(*arguments: object) -> object:
        asked.set()
        await answer.wait()
        return await plain(*arguments)

    @app.task(breaker=stripe)
    async def charge() -> None:
        raise AssertionError("it never starts")

    async def is_half_open() -> bool:
        return await state_of(app) is BreakerState.HALF_OPEN

    has_begun_to_leave, be_quiet = asyncio.Event(), Station.quiet

    def leave(station: Station) -> None:
        be_quiet(station)
        has_begun_to_leave.set()

    await fail(stripe)
    await until(is_half_open)
    monkeypatch.setattr(app.engine.store, "enter_breaker", slowly)
    monkeypatch.setattr(Station, "quiet", leave)
    job = await charge.aenqueue()
    worker = await app.worker(concurrency=1).__aenter__()
    async with asyncio.timeout(PATIENCE):
        await asked.wait()
        leaving = asyncio.create_task(worker.__aexit__(None, None, None))
        await has_begun_to_leave.wait()
        answer.set()
        await leaving
    record = await job.arecord()
    assert (record.state, record.attempt, record.waits) == (JobState.PENDING, 0, 0)
    [seen] = await app.breakers.alist()
    assert (seen.state, seen.probes) == (BreakerState.HALF_OPEN, 0)


@pytest.mark.parametrize("is_let_through", [True, False])
async def test_the_time_of_a_job_does_not_run_while_it_waits_for_a_permit(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, is_let_through: bool
) -> None:
    """Nobody else enforces timeouts in an embedded worker: what it writes off it must not begin afterwards."""
    monkeypatch.setattr("holdfast.worker.station._LAST_WORDS", 0.1)
    stripe = app.breaker("stripe", failures=1, reset="100ms")
    asked = asyncio.Event()
    plain: Callable[..., Awaitable[object]] = app.engine.store.enter_breaker

    async def slowly(*arguments: object) -> object:
        asked.set()
        monkeypatch.setattr(app.engine.store, "enter_breaker", plain)
        await asyncio.sleep(2)  # longer than the task has
        if not is_let_through:
            await app.engine.store.change_breaker("stripe", breaker.trip)
        return await plain(*arguments)

    runs = 0

    @app.task(breaker=stripe, timeout="1s", retry=Retry(1))
    async def charge() -> str:
        nonlocal runs
        runs += 1
        return "charged"

    async def is_half_open() -> bool:
        return await state_of(app) is BreakerState.HALF_OPEN

    await fail(stripe)
    await until(is_half_open)
    monkeypatch.setattr(app.engine.store, "enter_breaker", slowly)
    job = await charge.aenqueue()
    async with app.worker(concurrency=1):
        assert await job.aresult(timeout=PATIENCE) == "charged"
        assert asked.is_set()
    assert runs == 1
    record = await job.arecord()
    assert (record.attempt, record.waits) == (1, 0 if is_let_through else 1)


async def test_a_long_probe_keeps_its_permit(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "_POLL_EVERY", 0.01)
    renewed: list[object] = []
    plain: Callable[..., Awaitable[object]] = app.engine.store.report_breakers

    async def watch(reports: list[object]) -> object:
        renewed.extend(report for report in reports if getattr(report, "finding", None) is Finding.UNDER_WAY)
        return await plain(reports)

    monkeypatch.setattr(app.engine.store, "report_breakers", watch)
    stripe = app.breaker("stripe", failures=1, reset="100ms")
    end = asyncio.Event()

    @app.task(breaker=stripe)
    async def charge() -> None:
        await end.wait()

    await fail(stripe)
    job = await charge.aenqueue()
    async with app.worker(concurrency=1):

        async def is_renewed() -> bool:
            return len(renewed) > 1

        await until(is_renewed)
        end.set()
        await job.aresult(timeout=PATIENCE)
    assert await state_of(app) is BreakerState.CLOSED


# ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_breakers_are_listed_opened_and_reset(hf: Holdfast) -> None:
    hf.breaker("stripe")
    assert await hf.breakers.alist() == []
    opened = await hf.breakers.aopen("stripe", "2h")
    assert (opened.state, opened.reset_in) == (BreakerState.OPEN, timedelta(hours=2))
    assert (await hf.breakers.areset("stripe")).state is BreakerState.CLOSED
    with pytest.raises(BreakerNotFound, match="Did you mean 'stripe'"):
        await hf.breakers.areset("strip")
    with pytest.raises(InvalidOption, match="span"):
        await hf.breakers.aopen("stripe", "soon")


async def test_what_a_person_does_reaches_a_worker_at_once(hf: Holdfast) -> None:
    stripe = hf.breaker("stripe", reset="1h")
    store: Store = hf.engine.store

    @hf.task(breaker=stripe)
    async def charge() -> str:
        return "charged"

    async with hf.worker(concurrency=1):
        assert await (await charge.aenqueue()).aresult(timeout=PATIENCE) == "charged"
        await store.change_breaker("stripe", breaker.trip)  # as another process would

        async def is_known() -> bool:
            return isinstance(hf.engine.panel.look("stripe"), Wait)

        await until(is_known)
        job = await charge.aenqueue()

        async def has_waited() -> bool:
            return (await job.arecord()).waits == 1

        await until(has_waited)


def test_a_panel_may_be_used_by_many_threads(app: Holdfast) -> None:
    stripe = app.breaker("stripe", failures=1_000)
    start = threading.Barrier(8)

    def use() -> None:
        start.wait()
        for _ in range(25):
            with contextlib.suppress(ConnectionError), stripe:
                raise ConnectionError

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [record] = app.breakers.list()
    assert record.failures == 200


# ── in tests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_async", [True, False])
def test_a_test_moves_the_clock_past_the_reset_time(app: Holdfast, is_async: bool) -> None:
    provider = Provider()
    stripe = app.breaker("stripe", failures=2)
    if is_async:

        @app.task(name="charge", breaker=stripe, retry=ONCE_A_SECOND)
        async def on_loop(number: int) -> int:
            return provider.call(number)
    else:

        @app.task(name="charge", breaker=stripe, retry=ONCE_A_SECOND)
        def in_thread(number: int) -> int:
            return provider.call(number)

    with app.testing() as t:
        jobs = [app.send("charge", {"number": number}) for number in range(4)]
        assert t.run_all() == 2
        [record] = app.breakers.list()
        assert (record.state, record.failures) == (BreakerState.OPEN, 2)
        assert [(job.record().attempt, job.record().waits) for job in jobs] == [(1, 0), (1, 0), (0, 1), (0, 1)]
        t.advance("60s")
        assert t.run_all() == 1, "one probe, which fails, and is not charged"
        assert sorted(job.record().attempt for job in jobs) == [0, 0, 1, 1]
        provider.is_down = False
        t.advance("60s")
        t.run_all()
        assert {job.state() for job in jobs} == {JobState.COMPLETED}
        assert app.breakers.list()[0].state is BreakerState.CLOSED
    assert app.breakers.list() == [], "the app's own store was not touched"


def test_a_probe_whose_worker_dies_does_not_block_the_others(app: Holdfast) -> None:
    provider = Provider()
    stripe = app.breaker("stripe", failures=1)

    @app.task(breaker=stripe, retry=ONCE_A_SECOND)
    async def charge(number: int) -> int:
        await asyncio.sleep(0)
        return provider.call(number)

    with app.testing() as t:
        jobs = [charge.enqueue(number) for number in range(2)]
        t.run_all()
        provider.is_down = False
        t.advance("60s")
        t.crash_worker("during")
        t.run_all()
        assert app.breakers.list()[0].state is BreakerState.CLOSED, "its permit was free again when it came back"
        assert [job.result() for job in jobs] == [0, 1]
        assert [job.record().crashes for job in jobs].count(1) == 1


def test_a_worker_may_die_before_a_probe_starts(app: Holdfast) -> None:
    stripe = app.breaker("stripe", failures=1)

    @app.task(breaker=stripe)
    async def charge() -> str:
        return "charged"

    with app.testing() as t:
        app.breakers.open("stripe")
        job = charge.enqueue()
        t.run_all()
        t.advance("60s")
        t.crash_worker("before_start")
        t.run_all()
        assert job.record().attempt == 0
        t.advance("2m")
        t.run_all()
        assert job.result() == "charged"


def test_a_breaker_that_stays_open_ends_a_job_after_a_thousand_waits(app: Holdfast) -> None:
    stripe = app.breaker("stripe", reset="1s")

    @app.task(breaker=stripe)
    async def charge() -> None:
        raise AssertionError("it never starts")

    with app.testing() as t:
        app.publish_tasks()
        job = charge.enqueue()
        for _ in range(1_000):
            app.breakers.open("stripe")
            t.run_all()
            t.advance("1s")
        assert job.state() is JobState.DEAD
        assert "It has waited 1,000 times" in (job.record().error_message or "")
