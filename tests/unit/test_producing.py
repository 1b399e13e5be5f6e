"""Producing, from the user's side: what is enqueued is there as asked for, and its result comes back typed."""

from __future__ import annotations

import asyncio
import enum
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pydantic
import pytest

from holdfast import (
    Call,
    Context,
    DuplicateTask,
    Failure,
    FailureKind,
    Holdfast,
    HoldfastError,
    IdempotencyConflict,
    InvalidOption,
    InvalidPayload,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobRecord,
    JobState,
    Limit,
    NotAllowedInState,
    Queue,
    QueueFull,
    Rate,
    ResultTimeout,
    Retention,
    Retry,
    RunningLoop,
    StoreUnavailable,
    TaskDefaults,
    Unique,
    UnknownTask,
    WrongDatabase,
    engine,
    waiting,
)
from holdfast.ids import Ids
from holdfast.job import ClaimedJob
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition, Withdraw
from holdfast.store import HintKind, NewWorker, Settled, Settlement, Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import ManualClock

SECONDS = timedelta(seconds=1)
FAILURE = Failure(
    FailureKind.ERROR, "shop.NoSuchOrder", "order 17 is gone", 'Traceback …\n  File "shop.py", line 17, in charge'
)
T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: int
    lines: list[Line]


class Address(pydantic.BaseModel):
    city: str
    zip: int


class Shop:
    """An app with some tasks, and a worker made by hand."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.hf = hf = Holdfast(url, queues=[Queue("narrow", bound=2)], **settings)

        @hf.task
        async def send_receipt(order_id: int) -> str:
            return f"receipt-{order_id}"

        @hf.task(aliases=["shop.resize", "scale"], queue="media", priority="low", retry=Retry(3), expires="1h")
        def resize(url: str, size: int = 100) -> int:
            return size

        @hf.task(idempotency_key="charge:{tenant}:{cents}", bind=True, delivery="at_most_once")
        async def charge(ctx: Context, tenant: str, cents: int = 499, note: str = "") -> str:
            return tenant

        @hf.task(unique=Unique("{url}", window="10m"))
        def crawl(url: str, depth: int = 1) -> datetime:
            return datetime.now(UTC)

        @hf.task(unique=Unique("{url}"))
        def fetch(url: str) -> None: ...

        @hf.task
        def pack(order: Order) -> Order:
            return order

        @hf.task
        def label(order: Order, address: Address, color: Color, price: Decimal, at: datetime) -> None: ...

        @hf.task(queue="narrow")
        def squeeze(number: int) -> int:
            return number

        self.send_receipt, self.resize, self.charge, self.crawl = send_receipt, resize, charge, crawl
        self.fetch, self.pack, self.label, self.squeeze = fetch, pack, label, squeeze

    @property
    def store(self) -> Store:
        return self.hf._engine.store

    # ── a worker made by hand ────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, queue: str = "default", count: int = 1) -> list[ClaimedJob]:
        store = await self.hf._engine.ready()
        worker = uuid4()
        await store.register(NewWorker(worker, "by hand", queues=(queue,)))
        return await store.claim(worker, uuid4(), {queue: count})

    async def end(self, job: Job[Any], transition: Transition) -> None:
        """Run the only job that is ready in its queue to this end."""
        [claimed] = await self.claim((await job.arecord()).queue)
        assert claimed.id == job.id
        await self.settle(claimed, transition)

    async def settle(self, claimed: ClaimedJob, transition: Transition) -> None:
        assert await self.store.settle([Settlement(claimed.id, claimed.token, transition)]) == [Settled.APPLIED]

    def wait(self, awaitable: Awaitable[T]) -> T:
        """For the tests of synchronous code: do something beside it."""

        async def run() -> T:
            return await awaitable

        return self.hf._engine.wait(run(), "nothing")

    async def names(self) -> list[str]:
        return sorted(job.task for job in (await self.hf.jobs.apage(limit=1000)).jobs)


def url_of(kind: str, folder: Path) -> str:
    return "memory://" if kind == "memory" else f"sqlite:///{folder / 'jobs.db'}"


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(url_of(request.param, tmp_path))
    yield shop
    shop.hf.close()


@pytest.fixture
def file_shop(tmp_path: Path) -> Iterator[Shop]:
    """An app on a file, for what needs several connections."""
    shop = Shop(url_of("sqlite", tmp_path))
    yield shop
    shop.hf.close()


@pytest.fixture(params=["memory", "sqlite"])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Shop, ManualClock]]:
    """An app whose store has a clock that the test moves."""
    shop, clock = Shop(url_of(request.param, tmp_path)), ManualClock()
    store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "jobs.db", clock=clock)
    shop.hf._engine._make_store = lambda: store
    yield shop, clock
    shop.hf.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the other tasks of this loop run until something holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # it has no event to offer
            await asyncio.sleep(0.001)


# ── enqueue, aenqueue, call ──────────────────────────────────────────────────────────────────────────────────────────


async def test_an_enqueued_job_is_there_as_it_was_asked_for(shop: Shop) -> None:
    before = datetime.now(UTC)
    job = await shop.send_receipt.aenqueue(17)
    record = await job.arecord()
    assert (record.id, record.task, record.queue, record.priority) == (job.id, "send_receipt", "default", 5)
    assert (record.args, record.state, record.attempt) == ({"order_id": 17}, JobState.PENDING, 0)
    assert (record.max_attempts, record.delivery, record.expires_at) == (5, "at_least_once", None)
    assert before <= record.created_at <= datetime.now(UTC)
    assert not job.existing
    assert job.id.version == 7


def test_synchronous_code_enqueues_the_same(shop: Shop) -> None:
    job = shop.send_receipt.enqueue(order_id=17)
    assert job.record().args == {"order_id": 17}
    assert job.state() is JobState.PENDING
    assert job.attempts() == []
    assert shop.hf.jobs.get(job.id) == job.record()


def test_what_the_task_declares_is_what_its_jobs_get(shop: Shop) -> None:
    record = shop.resize.enqueue("u").record()
    assert (record.queue, record.priority, record.max_attempts) == ("media", 2, 3)
    assert record.expires_at == record.due_at + timedelta(hours=1)
    assert shop.charge.enqueue("acme").record().max_attempts == 1  # at most once


def test_the_defaults_of_the_app_hold_where_a_task_says_nothing() -> None:
    hf = Holdfast("memory://", defaults=TaskDefaults(queue="slow", priority=1, retry=Retry(2), expires="5m"))

    @hf.task
    def plain() -> None: ...

    @hf.task(queue="fast", priority=9)
    def special() -> None: ...

    record, other = plain.enqueue().record(), special.enqueue().record()
    assert (record.queue, record.priority, record.max_attempts) == ("slow", 1, 2)
    assert record.expires_at == record.due_at + timedelta(minutes=5)
    assert (other.queue, other.priority, other.max_attempts) == ("fast", 9, 2)
    hf.close()


def test_defaults_of_arguments_are_left_to_the_worker(shop: Shop) -> None:
    assert shop.resize.enqueue("u").record().args == {"url": "u"}
    assert shop.resize.enqueue("u", 5).record().args == {"url": "u", "size": 5}


def test_a_bound_task_is_enqueued_without_its_context(shop: Shop) -> None:
    assert shop.charge.enqueue("acme", note="x").record().args == {"tenant": "acme", "note": "x"}


async def test_calling_a_task_runs_it_here_and_stores_nothing(shop: Shop) -> None:
    assert await shop.send_receipt(1) == "receipt-1"
    assert shop.resize("u") == 100
    assert await shop.charge("acme") == "acme"
    assert await shop.hf.jobs.acount() == 0


def test_jobs_are_equal_when_they_are_the_same_job(shop: Shop) -> None:
    job = shop.send_receipt.enqueue(1)
    assert job == shop.hf.job(job.id) == shop.send_receipt.job(str(job.id))
    assert {job, shop.hf.job(job.id)} == {job}
    assert job != shop.send_receipt.enqueue(1)
    assert repr(job) == f"<Job {job.id}>"


async def test_a_synchronous_call_on_an_event_loop_names_the_one_to_await(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    calls: dict[str, Callable[[], object]] = {
        "send_receipt.aenqueue": lambda: shop.send_receipt.enqueue(1),
        "hf.aenqueue_many": lambda: shop.hf.enqueue_many([shop.send_receipt.call(1)]),
        "hf.asend": lambda: shop.hf.send("send_receipt", {"order_id": 1}),
        "hf.apublish_tasks": shop.hf.publish_tasks,
        "hf.aclose": shop.hf.close,
        "job.aresult": job.result,
        "job.arecord": job.record,
        "job.astate": job.state,
        "job.aattempts": job.attempts,
        "job.acancel": job.cancel,
        "job.aretry": job.retry,
        "job.arun_now": job.run_now,
        "hf.jobs.aget": lambda: shop.hf.jobs.get(job.id),
        "hf.jobs.apage": shop.hf.jobs.page,
        "hf.jobs.acount": shop.hf.jobs.count,
        "hf.jobs.acancel": lambda: shop.hf.jobs.cancel(everything=True),
        "hf.jobs.aattempts": lambda: shop.hf.jobs.attempts(job.id),
        "hf.dead.apage": shop.hf.dead.page,
        "hf.dead.acount": shop.hf.dead.count,
        "hf.dead.aretry": lambda: shop.hf.dead.retry(everything=True),
        "hf.dead.adiscard": lambda: shop.hf.dead.discard(everything=True),
        "hf.queues.alist": shop.hf.queues.list,
        "hf.queues.apause": lambda: shop.hf.queues.pause("q"),
        "hf.queues.aresume": lambda: shop.hf.queues.resume("q"),
        "hf.queues.abound": lambda: shop.hf.queues.bound("q", 5),
        "hf.workers.alist": shop.hf.workers.list,
    }
    for instead, call in calls.items():
        with pytest.raises(RunningLoop) as refused:
            call()
        assert f"`await {instead}(" in str(refused.value)
    assert await shop.hf.jobs.acount() == 1


# ── enqueue_many ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_batch_mixes_tasks_and_answers_in_order(shop: Shop) -> None:
    calls: list[Call[object]] = [
        shop.send_receipt.call(1),
        shop.resize.options(priority=9, tags=["vip"]).call("u"),
        shop.charge.call("acme"),
    ]
    jobs = await shop.hf.aenqueue_many(calls)
    records = [await job.arecord() for job in jobs]
    assert [record.task for record in records] == ["send_receipt", "resize", "charge"]
    assert [record.priority for record in records] == [5, 9, 5]
    assert records[1].tags == ("vip",)
    assert sorted(job.id for job in jobs) == [job.id for job in jobs]


async def test_a_batch_is_enqueued_whole_or_not_at_all(shop: Shop) -> None:
    await shop.charge.aenqueue("acme", note="first")
    with pytest.raises(IdempotencyConflict):
        await shop.hf.aenqueue_many([shop.send_receipt.call(1), shop.charge.call("acme", note="second")])
    calls: list[Call[object]] = [shop.send_receipt.call(1), *(shop.squeeze.call(i) for i in range(3))]
    with pytest.raises(QueueFull):
        await shop.hf.aenqueue_many(calls, wait=0)
    assert await shop.names() == ["charge"]


def test_an_empty_batch_is_no_batch(shop: Shop) -> None:
    assert shop.hf.enqueue_many([]) == []
    assert shop.hf.enqueue_many(iter(())) == []
    assert shop.hf.jobs.count() == 0


def test_a_batch_may_come_from_a_generator(shop: Shop) -> None:
    jobs = shop.hf.enqueue_many(shop.send_receipt.call(i) for i in range(100))
    assert [job.record().args for job in jobs[:2]] == [{"order_id": 0}, {"order_id": 1}]
    assert shop.hf.jobs.count() == 100


def test_a_generator_that_refuses_a_call_enqueues_nothing(shop: Shop) -> None:
    values: list[Any] = [1, 2, "three"]
    with pytest.raises(InvalidPayload, match="order_id"):
        shop.hf.enqueue_many(shop.send_receipt.call(value) for value in values)
    assert shop.hf.jobs.count() == 0


def test_ten_thousand_fit_into_a_batch_and_no_more(shop: Shop) -> None:
    call = shop.send_receipt.call(1)
    with pytest.raises(InvalidOption, match=r"10,001 at once are too many.*at most 10,000"):
        shop.hf.enqueue_many([call] * 10_001)
    assert shop.hf.jobs.count() == 0
    assert len(set(shop.hf.enqueue_many([call] * 10_000))) == 10_000
    assert shop.hf.jobs.count() == 10_000


def test_one_key_twice_in_a_batch_is_one_job(shop: Shop) -> None:
    first, second = shop.hf.enqueue_many([shop.charge.call("acme"), shop.charge.call("acme")])
    assert first == second
    assert (first.existing, second.existing) == (False, True)
    assert shop.hf.jobs.count() == 1


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_queue_and_priority_can_be_chosen_for_a_job(shop: Shop) -> None:
    record = shop.resize.options(queue="urgent", priority="high").enqueue("u").record()
    assert (record.queue, record.priority) == ("urgent", 8)


@pytest.mark.parametrize(("given", "stored"), [("high", 8), ("default", 5), ("low", 2), (0, 0), (9, 9), (4, 4)])
def test_priorities_have_names_and_numbers(given: Any, stored: int) -> None:
    shop = Shop("memory://")
    assert shop.send_receipt.options(priority=given).enqueue(1).record().priority == stored
    assert shop.hf.send("send_receipt", {"order_id": 1}, priority=given).record().priority == stored
    shop.hf.close()


@pytest.mark.parametrize("delay", ["5m", 300, 300.0, timedelta(minutes=5)])
def test_a_delayed_job_is_due_later(shop: Shop, delay: Any) -> None:
    record = shop.send_receipt.options(delay=delay).enqueue(1).record()
    assert record.due_at == record.created_at + timedelta(minutes=5)
    assert record.state is JobState.PENDING
    assert shop.wait(shop.claim()) == []


def test_no_delay_is_now(shop: Shop) -> None:
    job = shop.send_receipt.options(delay=0).enqueue(1)
    assert [claimed.id for claimed in shop.wait(shop.claim())] == [job.id]


@pytest.mark.parametrize(
    "at",
    [
        datetime(2050, 1, 1, 12, tzinfo=UTC),
        "2050-01-01T12:00:00Z",
        "2050-01-01 13:00+01:00",
        datetime(2050, 1, 1, 14, tzinfo=UTC).astimezone() - timedelta(hours=2),
    ],
)
def test_a_job_may_be_due_at_a_time(shop: Shop, at: datetime | str) -> None:
    record = shop.send_receipt.options(at=at).enqueue(1).record()
    assert record.due_at == datetime(2050, 1, 1, 12, tzinfo=UTC)


def test_a_time_that_is_past_is_now(shop: Shop) -> None:
    job = shop.send_receipt.options(at="2001-01-01T00:00Z").enqueue(1)
    assert job.record().due_at == job.record().created_at
    assert [claimed.id for claimed in shop.wait(shop.claim())] == [job.id]


def test_an_expiry_is_a_span_from_when_the_job_is_due_or_a_time(shop: Shop) -> None:
    spanned = shop.resize.options(delay="10m", expires="5m").enqueue("u").record()
    assert spanned.expires_at == spanned.created_at + timedelta(minutes=15)
    moment = datetime(2050, 1, 1, tzinfo=UTC)
    assert shop.resize.options(expires=moment).enqueue("u").record().expires_at == moment


async def test_an_expired_job_is_not_run(timed: tuple[Shop, ManualClock]) -> None:
    shop, clock = timed
    job = await shop.send_receipt.options(expires="5m").aenqueue(1)
    clock.advance("5m")
    assert await shop.claim() == []
    await shop.store.tick()
    with pytest.raises(JobFailed, match="Expired") as failed:
        await job.aresult()
    assert failed.value.error_type == "Expired"


def test_tags_and_context_travel_with_the_job(shop: Shop) -> None:
    context = {"trace": "abc", "depth": 3, "when": datetime(2026, 1, 1, tzinfo=UTC)}
    record = shop.send_receipt.options(tags=["vip", "eu", "vip"], context=context).enqueue(1).record()
    assert record.tags == ("vip", "eu")
    assert record.context == {"trace": "abc", "depth": 3, "when": "2026-01-01T00:00:00Z"}
    assert shop.send_receipt.enqueue(1).record().context == {}


def test_options_of_one_job_do_not_stick_to_the_task(shop: Shop) -> None:
    urgent = shop.send_receipt.options(queue="urgent")
    assert [urgent.enqueue(1).record().queue, urgent.enqueue(2).record().queue] == ["urgent", "urgent"]
    assert shop.send_receipt.enqueue(1).record().queue == "default"


# ── idempotency, unique, id ──────────────────────────────────────────────────────────────────────────────────────────


def test_one_literal_key_is_one_job(shop: Shop) -> None:
    first = shop.send_receipt.options(idempotency_key="k").enqueue(1)
    second = shop.send_receipt.options(idempotency_key="k").enqueue(1)
    assert second == first
    assert (first.existing, second.existing) == (False, True)
    assert repr(second) == f"<Job {first.id} (existing)>"
    assert first.record().idempotency_key == "k"


def test_keys_of_different_tasks_are_different(shop: Shop) -> None:
    first = shop.send_receipt.options(idempotency_key="k").enqueue(1)
    assert shop.squeeze.options(idempotency_key="k").enqueue(1) != first


def test_a_key_with_other_arguments_is_a_conflict_that_shows_no_argument(shop: Shop) -> None:
    first = shop.send_receipt.options(idempotency_key="k").enqueue(1)
    with pytest.raises(IdempotencyConflict, match="Use a new key for a new request") as conflict:
        shop.send_receipt.options(idempotency_key="k").enqueue(90909)
    assert conflict.value.existing == first.id
    assert str(first.id) in str(conflict.value)
    assert "90909" not in str(conflict.value)
    assert shop.hf.jobs.count() == 1


def test_a_template_makes_the_key_from_arguments_and_their_defaults(shop: Shop) -> None:
    first = shop.charge.enqueue("acme")
    assert first.record().idempotency_key == "charge:acme:499"
    assert shop.charge.enqueue("acme").existing
    assert not shop.charge.enqueue("acme", 500).existing
    assert shop.charge.options(idempotency_key="mine").enqueue("acme").record().idempotency_key == "mine"


def test_a_default_written_out_is_another_request(shop: Shop) -> None:
    """Or adding a parameter with a default would make a conflict of every request that is repeated over the deploy."""
    shop.charge.enqueue("acme")
    with pytest.raises(IdempotencyConflict):
        shop.charge.enqueue("acme", cents=499)


def test_the_order_of_the_arguments_makes_no_other_request(shop: Shop) -> None:
    first = shop.charge.enqueue(tenant="acme", cents=5)
    assert shop.charge.enqueue(cents=5, tenant="acme") == first


async def test_a_key_is_free_again_after_its_retention(timed: tuple[Shop, ManualClock]) -> None:
    shop, clock = timed
    first = await shop.charge.aenqueue("acme")
    await shop.end(first, Complete())
    clock.advance("23h")
    assert (await shop.charge.aenqueue("acme")) == first
    clock.advance("2h")
    second = await shop.charge.aenqueue("acme")
    assert second != first
    assert not second.existing


async def test_a_hundred_at_once_with_one_key_are_one_job(shop: Shop) -> None:
    jobs = await asyncio.gather(*(shop.charge.aenqueue("acme") for _ in range(100)))
    assert len(set(jobs)) == 1
    assert sum(not job.existing for job in jobs) == 1


async def test_a_unique_job_is_found_while_it_is_unfinished(shop: Shop) -> None:
    first = await shop.fetch.aenqueue("u")
    second = await shop.fetch.aenqueue("u")
    assert (second, second.existing) == (first, True)
    assert await shop.fetch.aenqueue("v") != first
    other = await shop.fetch.options(queue="elsewhere", tags=["vip"]).aenqueue("u")
    assert (other, (await other.arecord()).queue) == (first, "default")
    claimed, _ = await shop.claim(count=2)
    assert await shop.fetch.aenqueue("u") == first
    await shop.settle(claimed, Complete())
    third = await shop.fetch.aenqueue("u")
    assert (third == first, third.existing) == (False, False)


async def test_within_its_window_a_unique_job_is_found_after_its_end(timed: tuple[Shop, ManualClock]) -> None:
    shop, clock = timed
    first = await shop.crawl.aenqueue("u")
    await shop.end(first, Complete('"2030-01-01T00:00:00Z"'))
    clock.advance("9m")
    again = await shop.crawl.aenqueue("u", depth=7)  # the payload is not compared
    assert (again, again.existing) == (first, True)
    assert await again.aresult() == datetime(2030, 1, 1, tzinfo=UTC)
    clock.advance("2m")
    assert (await shop.crawl.aenqueue("u")) != first


async def test_after_its_window_a_unique_job_is_still_found_while_unfinished(timed: tuple[Shop, ManualClock]) -> None:
    shop, clock = timed
    first = await shop.crawl.aenqueue("u")
    clock.advance("1h")
    assert await shop.crawl.aenqueue("u") == first


def test_the_same_id_repeats_a_call(shop: Shop) -> None:
    id = Ids().make()
    first = shop.send_receipt.options(id=id).enqueue(1)
    second = shop.send_receipt.options(id=str(id)).enqueue(1)
    assert first.id == second.id == id
    assert (first.existing, second.existing) == (False, True)
    assert shop.hf.jobs.count() == 1


def test_the_same_id_with_another_call_is_a_conflict(shop: Shop) -> None:
    id = Ids().make()
    shop.send_receipt.options(id=id).enqueue(1)
    for call in (shop.send_receipt.options(id=id).call(2), shop.squeeze.options(id=id).call(1)):
        with pytest.raises(IdempotencyConflict, match="Leave id= out for a new job") as conflict:
            shop.hf.enqueue_many([call])
        assert conflict.value.existing == id
    assert shop.hf.jobs.count() == 1


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_tasks_of_one_name_are_refused_with_both_places(shop: Shop) -> None:
    line = sys._getframe().f_lineno
    with pytest.raises(DuplicateTask) as refused:

        @shop.hf.task
        def resize() -> None: ...

    message = str(refused.value)
    assert "Two tasks are named 'resize'" in message
    assert f"{__file__}:{line + 3}" in message
    assert message.count(__file__) == 2
    assert "name=" in message


def test_an_alias_counts_as_a_name(shop: Shop) -> None:
    for name, aliases in (("scale", []), ("fresh", ["resize"]), ("other", ["shop.resize"])):
        with pytest.raises(DuplicateTask, match="Two tasks are named"):
            shop.hf.task(name=name, aliases=aliases)(_nothing)
    shop.hf.task(name="fresh")(_nothing)  # what was refused has left no trace


def _nothing() -> None: ...


def test_a_task_is_named_after_its_function_or_as_told(shop: Shop) -> None:
    named = shop.hf.task(name="shop.nothing")(_nothing)
    assert (shop.send_receipt.name, named.name) == ("send_receipt", "shop.nothing")
    assert repr(named) == "<Task shop.nothing queue=default>"
    assert named.enqueue().record().task == "shop.nothing"


# ── send ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["resize", "shop.resize", "scale"])
def test_a_task_of_this_app_is_sent_by_name_or_alias(shop: Shop, name: str) -> None:
    record = shop.hf.send(name, {"url": "u", "size": 5}, tags=["vip"], delay="5m").record()
    assert (record.task, record.queue, record.args, record.tags) == (
        "resize",
        "media",
        {"url": "u", "size": 5},
        ("vip",),
    )
    assert record.due_at == record.created_at + timedelta(minutes=5)


@contextmanager
def elsewhere(shop: Shop) -> Iterator[Holdfast]:
    """Another service on the same database, without the code."""
    hf = Holdfast(shop.url)
    yield hf
    hf.close()


@pytest.mark.parametrize("name", ["resize", "shop.resize", "scale"])
def test_a_published_task_is_sent_by_name_or_alias_from_elsewhere(file_shop: Shop, name: str) -> None:
    file_shop.hf.publish_tasks()
    with elsewhere(file_shop) as hf:
        job = hf.send(name, {"url": "u"})
        sent, own = job.record(), file_shop.resize.enqueue("u").record()
    assert (sent.task, sent.queue, sent.priority, sent.max_attempts) == ("resize", "media", 2, 3)
    assert sent.expires_at == sent.created_at + timedelta(hours=1)
    assert (sent.args_json, sent.delivery) == (own.args_json, own.delivery)


def test_keys_made_elsewhere_are_the_same_keys(file_shop: Shop) -> None:
    file_shop.hf.publish_tasks()
    own = [file_shop.charge.enqueue("acme"), file_shop.crawl.enqueue("u")]
    with elsewhere(file_shop) as hf:
        sent = [hf.send("charge", {"tenant": "acme"}), hf.send("crawl", {"url": "u", "depth": 9})]
        assert hf.send("charge", {"tenant": "other"}).record().max_attempts == 1
        with pytest.raises(IdempotencyConflict):
            hf.send("charge", {"tenant": "acme", "note": "other"})
    assert sent == own
    assert all(job.existing for job in sent)


def test_options_hold_for_what_is_sent_elsewhere(file_shop: Shop) -> None:
    file_shop.hf.publish_tasks()
    id, moment = Ids().make(), datetime(2050, 1, 1, tzinfo=UTC)
    with elsewhere(file_shop) as hf:
        job = hf.send(
            "resize", {"url": "u"}, id=id, queue="q", priority="high", at=moment, expires=moment + SECONDS,
            idempotency_key="k", tags=["vip"], context={"a": 1}, wait=0,
        )  # fmt: skip
        assert hf.send("resize", {"url": "u"}, id=id).existing
        record = job.record()
    assert (record.id, record.queue, record.priority, record.idempotency_key) == (id, "q", 8, "k")
    assert (record.due_at, record.expires_at) == (moment, moment + SECONDS)
    assert (record.tags, record.context) == (("vip",), {"a": 1})


def test_a_name_that_nobody_has_published_is_unknown(shop: Shop) -> None:
    with pytest.raises(UnknownTask, match="No task named 'send_recipt' has been published"):
        shop.hf.send("send_recipt", {"order_id": 1})
    assert shop.hf.jobs.count() == 0


def test_a_name_is_known_as_soon_as_it_is_published(file_shop: Shop) -> None:
    with elsewhere(file_shop) as hf:
        with pytest.raises(UnknownTask):
            hf.send("resize", {"url": "u"})
        file_shop.hf.publish_tasks()
        assert hf.send("resize", {"url": "u"}).record().task == "resize"


def test_the_result_of_what_was_sent_is_plain_data(file_shop: Shop) -> None:
    file_shop.hf.publish_tasks()
    with elsewhere(file_shop) as hf:
        job = hf.send("crawl", {"url": "u"})
        file_shop.wait(file_shop.end(job, Complete('"2030-01-01T00:00:00Z"')))
        assert job.result(timeout="20s") == "2030-01-01T00:00:00Z"
    assert file_shop.crawl.job(job.id).result() == datetime(2030, 1, 1, tzinfo=UTC)


LABEL: dict[str, Any] = {
    "order": {"id": 1, "lines": [{"sku": "a", "price": "1.50"}]},
    "address": {"city": "Paris", "zip": 75001},
    "color": "red",
    "price": "9.99",
    "at": "2026-12-31T23:59:59Z",
}
OBJECTS: dict[str, Any] = {
    "order": Order(1, [Line("a", Decimal("1.50"))]),
    "address": Address(city="Paris", zip=75001),
    "color": Color.RED,
    "price": Decimal("9.99"),
    "at": datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC),
}


@pytest.mark.parametrize("from_elsewhere", [False, True])
@pytest.mark.parametrize("arguments", [LABEL, OBJECTS], ids=["plain", "objects"])
def test_rich_arguments_are_sent_as_data_or_as_objects(
    file_shop: Shop, arguments: dict[str, Any], from_elsewhere: bool
) -> None:
    file_shop.hf.publish_tasks()
    with elsewhere(file_shop) as other:
        record = (other if from_elsewhere else file_shop.hf).send("label", arguments).record()
    assert record.args == LABEL
    assert file_shop.label.signature.decode(record.args_json) == OBJECTS


@pytest.mark.parametrize("from_elsewhere", [False, True])
@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"order": {"id": "one", "lines": []}}, "order"),
        ({"order": {"id": 1}}, "order"),
        ({"order": {"id": 1, "lines": [{"sku": "a", "price": []}]}}, "order.lines[0].price"),
        ({"order": None}, "order"),
        ({"address": {"city": "Paris"}}, "address"),
        ({"address": {"city": "Paris", "zip": "many"}}, "address"),
        ({"color": "green"}, "color"),
        ({"price": "a lot"}, "price"),
        ({"price": True}, "price"),
        ({"at": "tomorrow"}, "at"),
        ({"at": 5.5}, "at"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_sent_arguments_that_do_not_fit_are_refused_by_name(
    file_shop: Shop, change: dict[str, Any], argument: str, from_elsewhere: bool
) -> None:
    file_shop.hf.publish_tasks()
    with elsewhere(file_shop) as other, pytest.raises(InvalidPayload) as refused:
        (other if from_elsewhere else file_shop.hf).send("label", {**LABEL, **change})
    assert argument in str(refused.value)
    assert not any(secret in str(refused.value) for secret in ("green", "a lot", "tomorrow", "many"))
    assert file_shop.hf.jobs.count() == 0


@pytest.mark.parametrize("from_elsewhere", [False, True])
def test_a_sent_argument_that_is_missing_is_named(file_shop: Shop, from_elsewhere: bool) -> None:
    file_shop.hf.publish_tasks()
    for arguments in (None, {}, {"size": 1}):
        with elsewhere(file_shop) as other, pytest.raises(InvalidPayload, match="url"):
            (other if from_elsewhere else file_shop.hf).send("resize", arguments)
    assert file_shop.hf.jobs.count() == 0


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_comes_when_the_job_has_ended(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    waiter = asyncio.create_task(job.aresult(timeout="20s"))
    await shop.end(job, Complete('"receipt-1"'))
    assert await waiter == "receipt-1"
    assert await job.aresult(timeout=0) == "receipt-1"


def test_synchronous_code_waits_for_a_result(shop: Shop) -> None:
    job = shop.send_receipt.enqueue(1)
    ender = threading.Thread(target=lambda: shop.wait(shop.end(job, Complete('"receipt-1"'))))
    ender.start()
    assert job.result(timeout="20s") == "receipt-1"
    ender.join()


async def test_results_are_typed_by_the_annotation(shop: Shop) -> None:
    pack = await shop.pack.aenqueue(Order(1, []))
    await shop.end(pack, Complete('{"id": 1, "lines": [{"sku": "a", "price": "1.50"}]}'))
    assert await pack.aresult() == Order(1, [Line("a", Decimal("1.50"))])
    assert await shop.hf.job(pack.id).aresult() == {"id": 1, "lines": [{"sku": "a", "price": "1.50"}]}
    crawl = await shop.crawl.aenqueue("u")
    await shop.end(crawl, Complete('"2030-01-01T00:00:00Z"'))
    assert await crawl.aresult() == datetime(2030, 1, 1, tzinfo=UTC)
    fetch = await shop.fetch.aenqueue("u")
    await shop.end(fetch, Complete())
    await fetch.aresult()  # None, and no error


async def test_a_result_of_another_type_is_refused_without_showing_it(shop: Shop) -> None:
    job = await shop.pack.aenqueue(Order(1, []))
    await shop.end(job, Complete('{"id": "hunter2", "lines": []}'))
    with pytest.raises(InvalidPayload, match=r"pack\(\): the result at id: expected int") as refused:
        await job.aresult()
    assert "hunter2" not in str(refused.value)


async def test_a_dead_job_raises_with_the_remote_traceback(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    await shop.end(job, Bury(FAILURE))
    with pytest.raises(JobFailed) as failed:
        await job.aresult()
    error = failed.value
    assert not isinstance(error, JobCancelled)
    assert (error.id, error.error_type, error.error_message) == (job.id, "shop.NoSuchOrder", "order 17 is gone")
    assert error.traceback == FAILURE.traceback
    for part in (str(job.id), "send_receipt", "shop.NoSuchOrder: order 17 is gone", 'File "shop.py", line 17'):
        assert part in str(error)


async def test_the_traceback_is_that_of_the_last_attempt(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    first = Failure(FailureKind.ERROR, "TimeoutError", "", "Traceback of the first attempt")
    await shop.end(job, GiveBack(is_charged=True, failure=first))
    assert await job.astate() is JobState.RETRYING
    await shop.end(job, Bury(FAILURE))
    with pytest.raises(JobFailed) as failed:
        await job.aresult()
    assert failed.value.traceback == FAILURE.traceback
    assert [attempt.failure for attempt in await job.aattempts()] == [first, FAILURE]


@pytest.mark.parametrize("text", ["a\ud800b", "a\0b", "\x1b[31m", "ÿ\U0001f600"], ids=ascii)
async def test_a_failure_is_stored_whatever_its_words_are(shop: Shop, text: str) -> None:
    """A file name that is not Unicode ends up in messages with lone surrogates in it."""
    job, other = await shop.send_receipt.aenqueue(1), await shop.resize.aenqueue("u")
    [one], [two] = await shop.claim(), await shop.claim("media")
    failure = Failure(FailureKind.ERROR, "OSError", text, f"Traceback of {text}")
    await asyncio.gather(shop.settle(one, Bury(failure)), shop.settle(two, Complete("5")))
    assert (await job.astate(), await other.astate()) == (JobState.DEAD, JobState.COMPLETED)
    with pytest.raises(JobFailed, match="OSError"):
        await job.aresult()


async def test_a_cancelled_job_raises_with_the_reason(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    waiter = asyncio.create_task(job.aresult(timeout="20s"))
    await job.acancel("twice")
    with pytest.raises(JobCancelled, match=r"was cancelled: twice") as cancelled:
        await waiter
    assert cancelled.value.id == job.id
    other = await shop.send_receipt.aenqueue(1)
    await shop.end(other, Withdraw())
    with pytest.raises(JobCancelled, match=r"was cancelled\.$"):
        await other.aresult()


@pytest.mark.parametrize("timeout", [0, "20ms"])
async def test_a_result_that_has_not_come_in_time_leaves_the_job_alone(shop: Shop, timeout: Any) -> None:
    job = await shop.send_receipt.aenqueue(1)
    with pytest.raises(ResultTimeout, match="It goes on") as late:
        await job.aresult(timeout=timeout)
    assert isinstance(late.value, TimeoutError)
    assert str(job.id) in str(late.value)
    assert await job.astate() is JobState.PENDING


async def test_the_result_of_an_unknown_job_is_not_waited_for(shop: Shop) -> None:
    unknown = Ids().make()
    async with asyncio.timeout(20):
        with pytest.raises(JobNotFound, match=f"There is no job {unknown}"):
            await shop.send_receipt.job(unknown).aresult()


def waiters(shop: Shop) -> int:
    """How many wait for jobs on this event loop."""
    watch = shop.hf._engine._endings._watches.get(asyncio.get_running_loop())
    return sum(len(futures) for futures in watch._waiters.values()) if watch is not None else 0


def only_this_task_is_left() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def no_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks now and then: only a hint can wake."""
    monkeypatch.setattr(waiting, "LOOK_EVERY", 3600.0)
    monkeypatch.setattr(engine, "_LOOK_FOR_ROOM_EVERY", 3600.0)


@pytest.mark.usefixtures("no_looking")
async def test_two_hundred_wait_for_one_job_with_one_task_beside_them(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    tasks = [asyncio.create_task(shop.send_receipt.job(job.id).aresult("20s")) for _ in range(200)]
    await until(lambda: waiters(shop) == 200)
    assert len(asyncio.all_tasks()) <= 202
    await shop.end(job, Complete('"receipt-1"'))
    assert await asyncio.gather(*tasks) == ["receipt-1"] * 200
    assert waiters(shop) == 0
    await until(only_this_task_is_left)


@pytest.mark.usefixtures("no_looking")
async def test_two_hundred_wait_for_two_hundred_jobs(shop: Shop) -> None:
    jobs = await shop.hf.aenqueue_many(shop.send_receipt.call(i) for i in range(200))
    tasks = [asyncio.create_task(job.aresult("20s")) for job in jobs]
    await until(lambda: waiters(shop) == 200)
    claimed = await shop.claim(count=200)
    half = [Settlement(one.id, one.token, Complete(f'"{one.id}"')) for one in claimed]
    await shop.store.settle(half[:100])
    await shop.store.settle(half[100:])
    assert await asyncio.gather(*tasks) == [str(job.id) for job in jobs]
    await until(only_this_task_is_left)


@pytest.mark.usefixtures("no_looking")
async def test_a_job_that_ends_in_another_process_wakes_its_waiter(file_shop: Shop) -> None:
    other = Shop(file_shop.url)
    job = await file_shop.send_receipt.aenqueue(1)
    waiter = asyncio.create_task(job.aresult("20s"))
    await until(lambda: waiters(file_shop) == 1)
    await other.end(other.send_receipt.job(job.id), Complete('"receipt-1"'))
    assert await waiter == "receipt-1"
    await other.hf.aclose()


async def test_a_waiter_that_is_cancelled_leaves_no_task_behind(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    tasks = [asyncio.create_task(job.aresult()) for _ in range(3)]
    await until(lambda: waiters(shop) == 3)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert waiters(shop) == 2
    for task in tasks[1:]:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert waiters(shop) == 0
    await until(only_this_task_is_left)
    assert await job.astate() is JobState.PENDING


async def test_waiting_goes_on_after_others_gave_up(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    for _ in range(3):
        with pytest.raises(ResultTimeout):
            await job.aresult(timeout="5ms")
    waiter = asyncio.create_task(job.aresult("20s"))
    await shop.end(job, Complete('"receipt-1"'))
    assert await waiter == "receipt-1"


# ── cancel, retry, run_now ───────────────────────────────────────────────────────────────────────────────────────────


async def test_cancelling_ends_a_waiting_job_and_asks_a_running_one(shop: Shop) -> None:
    waits, runs = await shop.send_receipt.aenqueue(1), await shop.resize.aenqueue("u")
    await shop.claim("media")
    await waits.acancel("not wanted")
    await runs.acancel("not wanted")
    assert (await waits.astate(), await runs.astate()) == (JobState.CANCELLED, JobState.ACTIVE)
    assert (await runs.arecord()).cancel_requested_at is not None
    assert (await waits.arecord()).cancel_reason == "not wanted"


async def test_what_a_state_does_not_allow_is_refused_with_the_state(shop: Shop) -> None:
    done, pending = await shop.send_receipt.aenqueue(1), await shop.resize.aenqueue("u")
    await shop.end(done, Complete('"receipt-1"'))
    refused_verbs: list[tuple[Callable[[], Awaitable[None]], str]] = [
        (done.acancel, "completed"),
        (done.aretry, "completed"),
        (done.arun_now, "completed"),
        (pending.aretry, "pending"),
    ]
    for verb, state in refused_verbs:
        with pytest.raises(NotAllowedInState) as refused:
            await verb()
        assert refused.value.state == state
        assert state in str(refused.value)
    assert (await done.astate(), await pending.astate()) == (JobState.COMPLETED, JobState.PENDING)


async def test_a_job_that_is_not_there_can_not_be_steered_or_looked_at(shop: Shop) -> None:
    id = Ids().make()
    job = shop.send_receipt.job(id)
    edit = shop.send_receipt.job(id).aretry({"order_id": 1})
    for attempt in (
        job.acancel(), job.aretry(), edit, job.arun_now(), job.arecord(), job.astate(), job.aattempts(),
        shop.hf.jobs.aget(id), shop.hf.jobs.aattempts(id),
    ):  # fmt: skip
        with pytest.raises(JobNotFound, match=str(id)):
            await attempt


async def test_a_dead_job_is_retried_with_its_history_kept(shop: Shop) -> None:
    job = await shop.send_receipt.aenqueue(1)
    await shop.end(job, Bury(FAILURE))
    await job.aretry()
    record = await job.arecord()
    assert (record.state, record.attempt, record.generation) == (JobState.PENDING, 0, 1)
    assert [attempt.failure for attempt in await job.aattempts()] == [FAILURE]
    await shop.end(job, Complete('"receipt-1"'))
    assert await job.aresult() == "receipt-1"


def test_synchronous_code_steers_the_same(shop: Shop) -> None:
    job = shop.send_receipt.enqueue(1)
    job.cancel(reason="twice")
    assert job.state() is JobState.CANCELLED
    job.retry({"order_id": 2})
    assert (job.state(), job.record().args) == (JobState.PENDING, {"order_id": 2})
    later = shop.send_receipt.options(delay="1h").enqueue(3)
    later.run_now()
    assert [claimed.id for claimed in shop.wait(shop.claim(count=5))] == [job.id, later.id]


@pytest.mark.parametrize("is_typed", [True, False])
async def test_a_retry_may_replace_some_arguments(shop: Shop, is_typed: bool) -> None:
    await shop.hf.apublish_tasks()
    job = await shop.resize.aenqueue("u", 5)
    await shop.end(job, Bury(FAILURE))
    handle: Job[Any] = shop.resize.job(job.id) if is_typed else shop.hf.job(job.id)
    for changes in ({"size": "huge"}, {"scale": 2}, {"size": object()}, {"url": None}):
        with pytest.raises(InvalidPayload):
            await handle.aretry(changes)
    assert (await job.arecord()).args == {"url": "u", "size": 5}
    assert await job.astate() is JobState.DEAD
    await handle.aretry({"size": 6})
    record = await job.arecord()
    assert (record.state, record.args, record.edits) == (JobState.PENDING, {"url": "u", "size": 6}, 1)


@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize(
    "rule",
    [
        {"limit": Limit(1, "{tenant}")},
        {"rate": Rate(1, "1m", "{tenant}")},
        {"order": "{tenant}"},
        {"fair": "{tenant}"},
        {"fair": "{kind}", "limit": Limit(1), "order": "{tenant}"},
    ],
    ids=" ".join,
)
async def test_a_retry_does_not_lead_a_job_past_the_limits_of_its_new_arguments(
    shop: Shop, rule: dict[str, Any], is_typed: bool
) -> None:
    @shop.hf.task(**rule)
    async def export(tenant: str, kind: str = "all", size: int = 1) -> None: ...

    await shop.hf.apublish_tasks()
    job = await export.aenqueue("a")
    await shop.end(job, Bury(FAILURE))
    handle: Job[Any] = job if is_typed else shop.hf.job(job.id)
    with pytest.raises(InvalidPayload, match=r"'b'\)\. Enqueue a new job") as refused:
        await handle.aretry({"tenant": "b"})
    assert f"{'order' if 'order' in rule else next(iter(rule))} 'b'" in str(refused.value)
    assert (await job.arecord()).args == {"tenant": "a"}
    await handle.aretry({"tenant": "a", "size": 2})
    assert (await job.arecord()).args == {"tenant": "a", "size": 2}


def test_what_newer_code_says_of_limits_keeps_nobody_from_editing_other_arguments(file_shop: Shop) -> None:
    def export(tenant: str, size: int = 1) -> None: ...

    job = file_shop.hf.task(limit=Limit(1, "{tenant}"))(export).enqueue("a")
    job.cancel()
    with elsewhere(file_shop) as hf:
        newer = hf.task(name=job.record().task, limit=Limit(1, "{tenant}", name="exports"))(export)
        with pytest.raises(InvalidPayload, match="another one"):
            newer.job(job.id).retry({"tenant": "b"})
        newer.job(job.id).retry({"size": 2})
    assert job.record().args == {"tenant": "a", "size": 2}


def test_a_retry_of_an_unpublished_task_takes_any_data(file_shop: Shop) -> None:
    job = file_shop.resize.enqueue("u")
    job.cancel()
    with elsewhere(file_shop) as hf:
        hf.job(job.id).retry({"size": 7})  # nobody here knows what it takes; its worker will
    assert job.record().args == {"url": "u", "size": 7}


async def test_a_job_whose_unique_key_has_moved_on_is_not_run_again(shop: Shop) -> None:
    first = await shop.fetch.aenqueue("u")
    await shop.end(first, Bury(FAILURE))
    second = await shop.fetch.aenqueue("u")
    with pytest.raises(IdempotencyConflict, match="its key belongs to job") as conflict:
        await first.aretry()
    assert conflict.value.existing == second.id
    assert str(second.id) in str(conflict.value)
    assert await first.astate() is JobState.DEAD


async def test_a_job_whose_idempotency_key_has_moved_on_is_not_run_again(timed: tuple[Shop, ManualClock]) -> None:
    shop, clock = timed
    first = await shop.charge.aenqueue("acme")
    await shop.end(first, Bury(FAILURE))
    clock.advance("25h")
    second = await shop.charge.aenqueue("acme")
    for verb in (first.aretry(), first.aretry({"note": "edited"})):
        with pytest.raises(IdempotencyConflict) as conflict:
            await verb
        assert conflict.value.existing == second.id
    assert await first.astate() is JobState.DEAD


# ── a full queue ─────────────────────────────────────────────────────────────────────────────────────────────────────


def waits_for_room(shop: Shop) -> Callable[[], bool]:
    store = shop.store
    assert isinstance(store, MemoryStore | SqliteStore)
    return lambda: HintKind.ROOM in store._hub.kinds


@pytest.mark.usefixtures("no_looking")
async def test_a_full_queue_is_waited_for_until_there_is_room(shop: Shop) -> None:
    for number in range(2):
        await shop.squeeze.aenqueue(number)
    producer = asyncio.create_task(shop.squeeze.options(wait="1h").aenqueue(3))
    await until(waits_for_room(shop))
    await shop.claim("narrow")
    async with asyncio.timeout(20):
        job = await producer
    assert await job.astate() is JobState.PENDING
    assert not waits_for_room(shop)()


@pytest.mark.usefixtures("no_looking")
async def test_room_made_by_a_cancel_or_a_larger_bound_is_noticed_too(shop: Shop) -> None:
    first, _ = [await shop.squeeze.aenqueue(number) for number in range(2)]
    for make_room in (first.acancel(), shop.hf.queues.abound("narrow", 3)):
        producer = asyncio.create_task(shop.hf.aenqueue_many([shop.squeeze.call(3)], wait="1h"))
        await until(waits_for_room(shop))
        await make_room
        async with asyncio.timeout(20):
            await producer


@pytest.mark.usefixtures("no_looking")
async def test_room_made_by_another_process_is_noticed_too(file_shop: Shop) -> None:
    for number in range(2):
        await file_shop.squeeze.aenqueue(number)
    other = Shop(file_shop.url)
    producer = asyncio.create_task(file_shop.squeeze.options(wait="1h").aenqueue(3))
    await until(waits_for_room(file_shop))
    await other.claim("narrow")
    async with asyncio.timeout(20):
        assert await (await producer).astate() is JobState.PENDING
    await other.hf.aclose()


async def test_a_queue_that_stays_full_is_waited_for_as_long_as_said(shop: Shop) -> None:
    for number in range(2):
        await shop.squeeze.aenqueue(number)
    start = time.monotonic()
    with pytest.raises(
        QueueFull, match="Queue 'narrow' is full: 2 jobs wait, 1 more would pass its bound of 2"
    ) as full:
        await shop.squeeze.options(wait="150ms").aenqueue(3)
    assert time.monotonic() - start >= 0.15
    assert (full.value.queue, full.value.never_fits) == ("narrow", False)
    assert await shop.hf.jobs.acount() == 2


async def test_a_full_queue_is_not_waited_for_when_that_is_said(shop: Shop) -> None:
    for number in range(2):
        await shop.squeeze.aenqueue(number)
    start = time.monotonic()
    with pytest.raises(QueueFull):
        await shop.squeeze.options(wait=0).aenqueue(3)
    with pytest.raises(QueueFull):
        await shop.hf.asend("squeeze", {"number": 3}, wait=0)
    with pytest.raises(QueueFull):
        await shop.hf.aenqueue_many([shop.squeeze.call(3)], wait=0)
    assert time.monotonic() - start < 4  # the default is to wait for 5 s


@pytest.mark.usefixtures("no_looking")
async def test_a_batch_beyond_the_bound_is_refused_at_once(shop: Shop) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(QueueFull, match="That many never fit: send fewer at once, or raise the bound") as full:
            await shop.hf.aenqueue_many([shop.squeeze.call(i) for i in range(3)], wait="1h")
    assert full.value.never_fits
    assert await shop.hf.jobs.acount() == 0


async def test_a_job_that_is_there_already_needs_no_room(shop: Shop) -> None:
    first = await shop.squeeze.options(idempotency_key="k").aenqueue(1)
    await shop.squeeze.aenqueue(2)
    assert await shop.squeeze.options(idempotency_key="k", wait=0).aenqueue(1) == first


# ── namespaces ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def in_every_state(shop: Shop) -> dict[str, Job[Any]]:
    """One job for each state that can be told from outside, and the queue they are in."""
    retrying = await shop.send_receipt.options(tags=["a", "b"]).aenqueue(1)
    await shop.end(retrying, GiveBack(timedelta(hours=1), is_charged=True, failure=FAILURE))
    dead = await shop.send_receipt.options(tags=["b"]).aenqueue(2)
    await shop.end(dead, Bury(FAILURE))
    completed = await shop.resize.aenqueue("u", 5)
    await shop.end(completed, Complete("5"))
    cancelled = await shop.pack.aenqueue(Order(7, [Line("x", Decimal(1))]))
    await cancelled.acancel()
    active = await shop.send_receipt.aenqueue(3)
    await shop.claim()
    pending = await shop.send_receipt.aenqueue(4)
    return {
        "retrying": retrying, "dead": dead, "completed": completed, "cancelled": cancelled, "active": active,
        "pending": pending,
    }  # fmt: skip


async def test_jobs_are_found_by_everything_that_is_known_of_them(shop: Shop) -> None:
    jobs = await in_every_state(shop)
    later, earlier = datetime.now(UTC) + timedelta(hours=1), datetime.now(UTC) - timedelta(hours=1)

    async def found(**filters: Any) -> set[str]:
        page = await shop.hf.jobs.apage(**filters)
        assert await shop.hf.jobs.acount(**filters) == len(page.jobs)
        return {name for name, job in jobs.items() if job.id in {record.id for record in page.jobs}}

    for name in jobs:
        assert await found(state=name) == {name}
        assert await found(state=JobState(name)) == {name}
    assert await found() == set(jobs)
    assert await found(state=["dead", JobState.CANCELLED]) == {"dead", "cancelled"}
    assert await found(queue="media") == {"completed"}
    assert await found(task="pack") == {"cancelled"}
    assert await found(tags=["b"]) == {"retrying", "dead"}
    assert await found(tags=["b", "a"]) == {"retrying"}
    assert await found(error_type="shop.NoSuchOrder") == {"retrying", "dead"}
    assert await found(since=earlier) == set(jobs)
    assert await found(since=later) == set()
    assert await found(until=earlier) == set()
    assert await found(finished_before=later) == {"dead", "completed", "cancelled"}
    assert await found(args={"order_id": 2}) == {"dead"}
    assert await found(args={"order_id": "2"}) == set()
    assert await found(args={"order_id": True}) == set()
    assert await found(args={"url": "u", "size": 5.0}) == {"completed"}
    assert await found(args={"order.id": 7}) == {"cancelled"}
    assert await found(args={"size": None}) == set()
    assert await found(args={"order_id": 2}, state="active") == set()


def test_pages_are_newest_first_and_follow_a_cursor(shop: Shop) -> None:
    jobs = shop.hf.enqueue_many(shop.send_receipt.call(i) for i in range(25))
    newest_first = [job.id for job in reversed(jobs)]
    first = shop.hf.jobs.page(limit=10)
    second = shop.hf.jobs.page(limit=10, cursor=first.next_cursor)
    assert second.next_cursor is not None
    third = shop.hf.jobs.page(limit=10, cursor=str(second.next_cursor))
    assert [job.id for page in (first, second, third) for job in page.jobs] == newest_first
    assert (len(third.jobs), third.next_cursor) == (5, None)
    assert shop.hf.jobs.page(limit=25).next_cursor is None
    assert len(shop.hf.jobs.page().jobs) == 25


async def test_dead_letters_are_looked_at_and_counted_apart(shop: Shop) -> None:
    jobs = await in_every_state(shop)
    assert [record.id for record in (await shop.hf.dead.apage()).jobs] == [jobs["dead"].id]
    assert await shop.hf.dead.acount() == 1
    assert await shop.hf.dead.acount(task="resize") == 0
    assert (await shop.hf.dead.apage(task="resize")).jobs == []


async def test_dead_letters_are_retried_and_discarded_by_filter(shop: Shop) -> None:
    dead: list[Job[Any]] = []
    for number in range(4):
        dead.append(await shop.send_receipt.aenqueue(number))
        await shop.end(dead[-1], Bury(FAILURE))
    done = await shop.hf.dead.aretry(args={"order_id": 0})
    assert (done.changed, done.skipped) == (1, 0)
    assert await dead[0].astate() is JobState.PENDING
    assert (await shop.hf.dead.adiscard(args={"order_id": 1})).changed == 1
    with pytest.raises(JobNotFound):
        await dead[1].astate()
    assert (await shop.hf.dead.aretry(task="resize")).changed == 0
    assert (await shop.hf.dead.adiscard(everything=True)).changed == 2
    assert await shop.hf.jobs.acount() == 1


async def test_a_bulk_retry_passes_over_those_whose_key_has_moved_on(shop: Shop) -> None:
    first = await shop.fetch.aenqueue("u")
    await shop.end(first, Bury(FAILURE))
    await shop.fetch.aenqueue("u")
    done = await shop.hf.dead.aretry(everything=True)
    assert (done.changed, done.skipped) == (0, 1)


async def test_a_bulk_verb_without_a_filter_must_say_that_it_means_it(shop: Shop) -> None:
    await in_every_state(shop)
    for verb in (shop.hf.jobs.acancel, shop.hf.dead.aretry, shop.hf.dead.adiscard):
        with pytest.raises(InvalidOption, match=r"needs a filter, such as task=…; everything=True"):
            await verb()
        with pytest.raises(InvalidOption, match="state= can't be given here"):
            await verb(state="dead")
    assert await shop.hf.jobs.acount() == 6
    assert await shop.hf.dead.acount() == 1


async def test_unfinished_jobs_are_cancelled_in_bulk(shop: Shop) -> None:
    jobs = await in_every_state(shop)
    done = await shop.hf.jobs.acancel(everything=True, reason="closing down")
    assert (done.changed, done.skipped) == (3, 0)
    states = {name: await job.astate() for name, job in jobs.items()}
    assert states == {
        "retrying": "cancelled", "pending": "cancelled", "cancelled": "cancelled",
        "active": "active", "dead": "dead", "completed": "completed",
    }  # fmt: skip
    assert (await jobs["active"].arecord()).cancel_reason == "closing down"


def test_bulk_verbs_go_on_beyond_one_batch(shop: Shop) -> None:
    shop.hf.enqueue_many(shop.send_receipt.call(i) for i in range(1201))
    shop.resize.enqueue("u")
    assert shop.hf.jobs.cancel(task="send_receipt").changed == 1201
    assert shop.hf.jobs.count(state="pending") == 1


async def test_queues_are_listed_paused_and_bounded(shop: Shop) -> None:
    await shop.send_receipt.aenqueue(1)
    await shop.send_receipt.options(delay="1h").aenqueue(2)
    await shop.hf.queues.apause("default")
    await shop.hf.queues.abound("default", 7)
    queues = {queue.name: queue for queue in await shop.hf.queues.alist()}
    assert list(queues) == ["default", "narrow"]
    default = queues["default"]
    assert (default.waiting, default.scheduled, default.is_paused, default.bound) == (1, 1, True, 7)
    assert (queues["narrow"].bound, queues["narrow"].is_paused) == (2, False)
    assert await shop.claim() == []
    await shop.hf.queues.aresume("default")
    await shop.hf.queues.abound("default", None)
    default = (await shop.hf.queues.alist())[0]
    assert (default.is_paused, default.bound) == (False, 100_000)
    assert len(await shop.claim()) == 1


def test_synchronous_code_controls_queues_too(shop: Shop) -> None:
    shop.hf.queues.pause("default")
    shop.hf.queues.bound("default", 1)
    shop.send_receipt.enqueue(1)
    with pytest.raises(QueueFull, match="bound of 1"):
        shop.send_receipt.options(wait=0).enqueue(2)
    shop.hf.queues.resume("default")
    assert [queue.name for queue in shop.hf.queues.list() if queue.is_paused] == []


async def test_workers_are_listed_with_what_they_hold(shop: Shop) -> None:
    assert await shop.hf.workers.alist() == []
    await shop.send_receipt.aenqueue(1)
    await shop.claim()
    [worker] = await shop.hf.workers.alist()
    assert (worker.name, worker.queues, worker.active, worker.dead_at) == ("by hand", ("default",), 1, None)


async def test_an_app_that_was_closed_opens_again_on_use(file_shop: Shop) -> None:
    async with file_shop.hf:
        job = await file_shop.send_receipt.aenqueue(1)
    assert await job.astate() is JobState.PENDING
    await file_shop.hf.aclose()
    assert await file_shop.hf.jobs.acount() == 1


# ── transactions of the user's ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def path(file_shop: Shop) -> Path:
    """The database file, with a table of the user's beside Holdfast's."""
    await file_shop.hf._engine.ready()
    path = Path(file_shop.url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table orders (id integer primary key, name text)")
    return path


@pytest.fixture
def tx(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def orders(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((count,),) = connection.execute("select count(*) from orders").fetchall()
        return int(count)


def test_a_job_exists_if_and_only_if_the_users_transaction_commits(
    file_shop: Shop, path: Path, tx: sqlite3.Connection
) -> None:
    tx.execute("insert into orders values (1, 'a')")
    rolled_back = file_shop.send_receipt.options(tx=tx).enqueue(1)
    tx.rollback()
    with tx:
        tx.execute("insert into orders values (2, 'b')")
        committed = file_shop.send_receipt.options(tx=tx).enqueue(2)
    assert (file_shop.hf.jobs.count(), orders(path)) == (1, 1)
    assert committed.record().args == {"order_id": 2}
    with pytest.raises(JobNotFound):
        rolled_back.record()


def test_nobody_sees_the_job_before_the_commit(file_shop: Shop, path: Path, tx: sqlite3.Connection) -> None:
    job = file_shop.send_receipt.options(tx=tx).enqueue(1)
    assert tx.in_transaction
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("select count(*) from holdfast_jobs").fetchall() == [(0,)]
    assert file_shop.hf.jobs.count() == 0
    with pytest.raises(JobNotFound):
        job.record()
    tx.commit()
    assert job.state() is JobState.PENDING
    assert [claimed.id for claimed in file_shop.wait(file_shop.claim())] == [job.id]


def test_the_job_can_be_run_once_committed_like_any_other(file_shop: Shop, tx: sqlite3.Connection) -> None:
    with tx:
        job = file_shop.send_receipt.options(tx=tx, priority="high", tags=["vip"], delay="1h").enqueue(1)
    record = job.record()
    assert (record.priority, record.tags) == (8, ("vip",))
    assert record.due_at == record.created_at + timedelta(hours=1)
    job.run_now()
    file_shop.wait(file_shop.end(job, Complete('"receipt-1"')))
    assert job.result("20s") == "receipt-1"


def test_a_refusal_leaves_the_transaction_usable(file_shop: Shop, path: Path, tx: sqlite3.Connection) -> None:
    file_shop.charge.enqueue("acme", note="first")
    tx.execute("insert into orders values (1, 'a')")
    first = file_shop.squeeze.options(tx=tx).enqueue(1)
    with pytest.raises(IdempotencyConflict):
        file_shop.charge.options(tx=tx).enqueue("acme", note="second")
    with pytest.raises(InvalidPayload):
        file_shop.squeeze.options(tx=tx).enqueue("many")  # type: ignore[arg-type]
    start = time.monotonic()
    with pytest.raises(QueueFull):  # at once: nobody else could make room while this transaction has the lock
        file_shop.hf.enqueue_many([file_shop.squeeze.call(i) for i in range(2)], tx=tx, wait="1h")
    with pytest.raises(QueueFull):
        file_shop.squeeze.options(tx=tx, wait="1h").enqueue(file_shop.squeeze.options(tx=tx).enqueue(2).id.int % 9)
    assert time.monotonic() - start < 10
    assert tx.in_transaction
    tx.execute("insert into orders values (2, 'b')")
    tx.commit()
    assert orders(path) == 2
    assert file_shop.wait(file_shop.names()) == ["charge", "squeeze", "squeeze"]
    assert first.state() is JobState.PENDING


def test_many_join_the_transaction_together(file_shop: Shop, tx: sqlite3.Connection) -> None:
    calls: list[Call[object]] = [
        file_shop.send_receipt.call(1),
        file_shop.charge.call("acme"),
        file_shop.charge.call("acme"),
    ]
    with tx:
        jobs = file_shop.hf.enqueue_many(calls, tx=tx)
        assert file_shop.hf.enqueue_many([], tx=tx) == []
    assert [job.existing for job in jobs] == [False, False, True]
    assert file_shop.wait(file_shop.names()) == ["charge", "send_receipt"]


def test_a_call_of_a_batch_has_no_transaction_of_its_own(file_shop: Shop, tx: sqlite3.Connection) -> None:
    with pytest.raises(InvalidOption, match="Give it to enqueue_many itself"):
        file_shop.send_receipt.options(tx=tx).call(1)
    assert not tx.in_transaction


async def test_asynchronous_code_may_pass_its_transaction_too(file_shop: Shop, tx: sqlite3.Connection) -> None:
    job = await file_shop.send_receipt.options(tx=tx).aenqueue(1)
    [other] = await file_shop.hf.aenqueue_many([file_shop.send_receipt.call(2)], tx=tx)
    await file_shop.hf.asend("send_receipt", {"order_id": 3}, tx=tx)
    assert await file_shop.hf.jobs.acount() == 0
    tx.commit()
    assert await file_shop.hf.jobs.acount() == 3
    assert (await job.astate(), await other.astate()) == (JobState.PENDING, JobState.PENDING)


def test_synchronous_code_may_send_by_name_in_its_transaction(file_shop: Shop, tx: sqlite3.Connection) -> None:
    file_shop.hf.publish_tasks()
    with elsewhere(file_shop) as hf:
        hf.send("send_receipt", {"order_id": 1}, tx=tx)
        file_shop.hf.send("send_receipt", {"order_id": 2}, tx=tx)
        assert hf.jobs.count() == 0
        tx.commit()
        assert hf.jobs.count() == 2


def test_a_key_is_taken_inside_the_transaction_and_free_after_its_rollback(
    file_shop: Shop, tx: sqlite3.Connection
) -> None:
    first = file_shop.charge.options(tx=tx).enqueue("acme")
    second = file_shop.charge.options(tx=tx).enqueue("acme")
    assert (second, second.existing) == (first, True)
    tx.rollback()
    third = file_shop.charge.enqueue("acme")
    assert (third == first, third.existing) == (False, False)
    fourth = file_shop.charge.options(tx=tx).enqueue("acme")
    assert (fourth, fourth.existing) == (third, True)
    tx.rollback()


def test_an_id_is_repeated_inside_the_transaction(file_shop: Shop, tx: sqlite3.Connection) -> None:
    id = Ids().make()
    with tx:
        first = file_shop.send_receipt.options(tx=tx, id=id).enqueue(1)
        second = file_shop.send_receipt.options(tx=tx, id=id).enqueue(1)
    assert (first.id, first.existing, second.id, second.existing) == (id, False, id, True)


@pytest.mark.parametrize("text_factory", [bytes, bytearray, lambda raw: raw.decode("latin-1"), str])
@pytest.mark.parametrize("row_factory", [sqlite3.Row, lambda cursor, row: {"row": row}, None])
def test_factories_of_the_user_are_respected_and_do_not_disturb(
    file_shop: Shop, tx: sqlite3.Connection, row_factory: Any, text_factory: Any
) -> None:
    tx.row_factory, tx.text_factory = row_factory, text_factory
    file_shop.send_receipt.options(tx=tx, queue="eins-zwei-drei").enqueue(1)
    first = file_shop.charge.options(tx=tx, queue="übergrößen").enqueue("acme")
    assert file_shop.charge.options(tx=tx, queue="übergrößen").enqueue("acme") == first
    tx.commit()
    assert (tx.row_factory, tx.text_factory) == (row_factory, text_factory)
    queues = {queue.name: queue.waiting for queue in file_shop.hf.queues.list() if queue.waiting}
    assert queues == {"eins-zwei-drei": 1, "übergrößen": 1}
    assert first.record().args == {"tenant": "acme"}


def test_a_connection_without_a_transaction_is_refused_until_there_is_one(file_shop: Shop, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as tx:
        with pytest.raises(InvalidOption, match=r"autocommit mode with no transaction open. Execute BEGIN IMMEDIATE"):
            file_shop.send_receipt.options(tx=tx).enqueue(1)
        assert file_shop.hf.jobs.count() == 0
        tx.execute("begin")
        file_shop.send_receipt.options(tx=tx).enqueue(1)
        tx.execute("rollback")
        tx.execute("begin immediate")
        file_shop.send_receipt.options(tx=tx).enqueue(2)
        assert file_shop.hf.jobs.count() == 0
        tx.execute("commit")
    assert file_shop.hf.jobs.count() == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3.Connection.autocommit is new in 3.12")
def test_the_autocommit_attribute_is_understood(file_shop: Shop, path: Path) -> None:
    settings: dict[str, Any] = {"autocommit": False}
    with closing(sqlite3.connect(path, **settings)) as tx:
        file_shop.send_receipt.options(tx=tx).enqueue(1)
        tx.rollback()
        file_shop.send_receipt.options(tx=tx).enqueue(2)
        tx.commit()
    settings = {"autocommit": True}
    with closing(sqlite3.connect(path, **settings)) as tx:
        with pytest.raises(InvalidOption, match="Execute BEGIN IMMEDIATE"):
            file_shop.send_receipt.options(tx=tx).enqueue(3)
        tx.execute("begin")
        file_shop.send_receipt.options(tx=tx).enqueue(4)
        tx.execute("commit")
    assert file_shop.hf.jobs.count() == 2


def test_the_users_savepoints_are_left_alone(file_shop: Shop, tx: sqlite3.Connection) -> None:
    tx.execute("begin")
    tx.execute("savepoint holdfast")  # a name that Holdfast might use too
    file_shop.send_receipt.options(tx=tx).enqueue(1)
    tx.execute("rollback to holdfast")
    file_shop.send_receipt.options(tx=tx).enqueue(2)
    tx.execute("release holdfast")
    tx.commit()
    assert [job.args for job in file_shop.hf.jobs.page().jobs] == [{"order_id": 2}]


def test_another_database_is_refused(file_shop: Shop, tmp_path: Path) -> None:
    stranger = Shop(f"sqlite:///{tmp_path / 'other.db'}")
    stranger.hf.jobs.count()
    for name in (str(tmp_path / "other.db"), str(tmp_path / "empty.db"), ":memory:"):
        with closing(sqlite3.connect(name)) as tx:
            with pytest.raises(WrongDatabase, match="another database than Holdfast's own") as refused:
                file_shop.send_receipt.options(tx=tx).enqueue(1)
            assert "jobs.db" in str(refused.value)
            assert not tx.in_transaction
    assert (file_shop.hf.jobs.count(), stranger.hf.jobs.count()) == (0, 0)
    stranger.hf.close()


@pytest.mark.parametrize("thing", [object(), "connection", 5, sqlite3, ManualClock()])
async def test_something_else_than_a_connection_is_refused(file_shop: Shop, thing: object) -> None:
    with pytest.raises(WrongDatabase, match=r"Pass a sqlite3\.Connection to that file"):
        await file_shop.send_receipt.options(tx=thing).aenqueue(1)
    assert await file_shop.hf.jobs.acount() == 0


def test_the_memory_store_has_no_transaction_to_join(tx: sqlite3.Connection) -> None:
    shop = Shop("memory://")
    with pytest.raises(WrongDatabase, match="memory store has no transactions"):
        shop.send_receipt.options(tx=tx).enqueue(1)
    assert shop.hf.jobs.count() == 0
    shop.hf.close()


def test_a_closed_connection_is_refused(file_shop: Shop, path: Path) -> None:
    tx = sqlite3.connect(path)
    tx.close()
    with pytest.raises(InvalidOption, match="closed"):
        file_shop.send_receipt.options(tx=tx).enqueue(1)
    assert file_shop.hf.jobs.count() == 0


def test_a_connection_of_another_thread_is_refused(file_shop: Shop, tx: sqlite3.Connection) -> None:
    errors: list[BaseException] = []

    def enqueue() -> None:
        try:
            file_shop.send_receipt.options(tx=tx).enqueue(1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enqueue)
    thread.start()
    thread.join()
    [error] = errors
    assert isinstance(error, InvalidOption)
    assert "in the thread it belongs to" in str(error)
    assert file_shop.hf.jobs.count() == 0


def test_a_read_only_connection_is_a_typed_error(file_shop: Shop, path: Path) -> None:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as tx:
        with pytest.raises(HoldfastError, match="read-only"):
            file_shop.send_receipt.options(tx=tx).enqueue(1)
    assert file_shop.hf.jobs.count() == 0


def test_a_transaction_that_has_read_an_older_state_is_told_to_begin_anew(
    file_shop: Shop, tx: sqlite3.Connection
) -> None:
    tx.execute("begin")
    tx.execute("select * from orders").fetchall()  # from here on it sees the database as it is now
    file_shop.send_receipt.enqueue(1)
    with pytest.raises(StoreUnavailable, match=r"(?i)begin immediate"):
        file_shop.send_receipt.options(tx=tx).enqueue(2)
    tx.rollback()
    with tx:
        file_shop.send_receipt.options(tx=tx).enqueue(2)
    assert file_shop.hf.jobs.count() == 2


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
def test_the_tables_of_a_new_file_come_with_the_transaction_that_needs_them(
    tmp_path: Path, is_committed: bool, is_async: bool
) -> None:
    path = tmp_path / "new.db"
    shop = Shop(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as tx:
        tx.execute("create table orders (id integer primary key)")
        tx.execute("insert into orders default values")
        task = shop.send_receipt.options(tx=tx)
        job = asyncio.run(task.aenqueue(1)) if is_async else task.enqueue(1)
        if is_committed:
            tx.commit()
        else:
            tx.rollback()
    assert shop.hf.jobs.count() == is_committed
    if is_committed:
        assert job.state() is JobState.PENDING
    shop.hf.close()


def test_reading_does_not_wait_for_a_transaction_of_the_callers_own(file_shop: Shop, tx: sqlite3.Connection) -> None:
    first = file_shop.send_receipt.enqueue(1)
    fresh = Shop(file_shop.url)
    with tx:
        tx.execute("insert into orders (id) values (7)")
        assert fresh.hf.job(first.id).state() is JobState.PENDING
    fresh.hf.close()


def test_the_first_use_of_an_app_may_be_in_a_transaction(file_shop: Shop, path: Path, tx: sqlite3.Connection) -> None:
    fresh = Shop(file_shop.url)
    with tx:
        tx.execute("select * from orders").fetchall()
        job = fresh.send_receipt.options(tx=tx).enqueue(1)
    assert job.state() is JobState.PENDING
    fresh.hf.close()


def test_the_declared_bounds_hold_in_the_first_transaction_of_an_app(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'new.db'}")
    other = Holdfast(shop.url)
    other.jobs.count()  # makes the tables, but knows nothing of the bound
    with closing(sqlite3.connect(tmp_path / "new.db")) as tx, pytest.raises(QueueFull, match="bound of 2"):
        shop.hf.enqueue_many([shop.squeeze.call(i) for i in range(3)], tx=tx)
    assert other.jobs.count() == 0
    other.close()
    shop.hf.close()


def test_a_producer_keeps_the_retention_that_the_app_was_given() -> None:
    shop = Shop("memory://", retention=Retention(completed="2h"))
    store = shop.store
    assert isinstance(store, MemoryStore)
    assert store._retention.completed == timedelta(hours=2)
    shop.hf.close()


def records_of(jobs: list[Job[Any]]) -> list[JobRecord]:
    return [job.record() for job in jobs]


def test_ids_rise_with_every_enqueue(shop: Shop) -> None:
    jobs = [shop.send_receipt.enqueue(i) for i in range(20)]
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert len({record.id for record in records_of(list(jobs))}) == 20
    assert all(isinstance(job.id, UUID) for job in jobs)
