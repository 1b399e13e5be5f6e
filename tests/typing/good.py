"""The public API as it is meant to be used. Every line must be clean under mypy --strict and pyright."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from holdfast import (
    AsyncTask,
    Attempt,
    Breaker,
    BreakerOpen,
    BreakerRecord,
    BreakerState,
    Call,
    Context,
    Explanation,
    Holdfast,
    Job,
    JobRecord,
    JobState,
    LimitRecord,
    Page,
    Plan,
    Queue,
    QueueRecord,
    Reason,
    ReasonKind,
    Retention,
    Retry,
    ScheduleRecord,
    SyncTask,
    Task,
    TaskDefaults,
    TickRecord,
    Unique,
    WorkerRecord,
)
from holdfast.testing import Rehearsal

hf = Holdfast(
    "memory://",
    imports=["shop.billing"],
    queues=[Queue("email", bound=50_000)],
    defaults=TaskDefaults(queue="default", priority="low", timeout=timedelta(minutes=1)),
    retention=Retention(completed="1h"),
    work_limit="500ms",
)
assert_type(Holdfast(), Holdfast)


@dataclass
class Receipt:
    order: int


# ── declaring ────────────────────────────────────────────────────────────────────────────────────────────────────────


@hf.task
async def send_receipt(order_id: int) -> str:
    return f"receipt-{order_id}"


@hf.task
def resize(url: str, size: int = 100, *, crop: bool = False) -> Receipt:
    return Receipt(size if crop else len(url))


@hf.task()
async def nothing() -> None: ...


@hf.task(queue="billing", priority="high", retry=Retry(8, base="2s"), expires=3600, delivery="at_most_once")
async def refund(order_id: int) -> Receipt:
    return Receipt(order_id)


@hf.task(
    name="shop.archive",
    aliases=["archive"],
    priority=3,
    soft_timeout="30s",
    timeout=45.0,
    idempotency_key="archive:{order_id}",
    unique=Unique("{order_id}", window="10m"),
    redact=["card"],
)
def archive(order_id: int, card: str) -> datetime:
    return datetime.now(UTC)


@hf.task(bind=True)
async def charge(ctx: Context, tenant: str, cents: int = 0) -> str:
    assert_type(ctx.job_id, UUID | None)
    assert_type(ctx.attempt, int)
    return tenant * cents


@hf.task(bind=True, queue="media")
def shrink(ctx: Context, url: str) -> int:
    return len(url)


@hf.task(bind=True)
def tick(ctx: Context) -> None: ...


@hf.task(bind=False, queue="media")
def plain(url: str) -> int:
    return len(url)


# ── breakers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

stripe = hf.breaker("stripe", failures=5, reset="60s", probes=1, on=[ConnectionError], ignore=[KeyError])
assert_type(stripe, Breaker)


@hf.task(breaker=stripe, queue="billing")
async def charge_card(order_id: int) -> str:
    async with hf.breaker("bank") as bank:
        assert_type(bank, Breaker)
    return ""


def charge_in_a_thread() -> timedelta | None:
    try:
        with stripe as entered:
            assert_type(entered, Breaker)
    except BreakerOpen as refused:
        assert_type(refused.delay, timedelta)
        assert_type(refused.breaker, str)
        return refused.delay
    return None


async def steer_breakers() -> None:
    assert_type(await charge_card.aenqueue(1), Job[str])
    assert_type(await hf.breakers.alist(), list[BreakerRecord])
    assert_type(hf.breakers.reset("stripe").state, BreakerState)
    assert_type(await hf.breakers.aopen("stripe", "2h"), BreakerRecord)


# ── scheduling ───────────────────────────────────────────────────────────────────────────────────────────────────────


@hf.cron("0 9 * * mon-fri", tz="Europe/Paris", catchup="once", overlap="skip", jitter="10m", queue="mail")
def digest() -> None: ...


@hf.every("5m")
async def poll_bank() -> str:
    return ""


@hf.every(minutes=5, bind=True, retry=Retry(3))
async def poll_shop(ctx: Context, tenant: str = "all") -> str:
    return tenant


@hf.at("2026-12-31 23:59:59", tz="UTC")
@hf.cron("@daily", name="daily", args={"order_id": 1})
@hf.task
async def remind(order_id: int = 0) -> int:
    return order_id


assert_type(digest, SyncTask[[], None])
assert_type(poll_bank, AsyncTask[[], str])
assert_type(poll_shop.enqueue("acme"), Job[str])
assert_type(remind.enqueue(order_id=1), Job[int])
assert_type(
    hf.at(datetime.now(UTC), name="once", args={"tenant": "acme"}, priority="low")(poll_shop).enqueue(), Job[str]
)


async def steer_schedules() -> None:
    assert_type(await hf.schedules.aall(), list[ScheduleRecord])
    assert_type(hf.schedules.add("a", "remind", cron="0 9 * * *", tz="UTC", args={"order_id": 1}), ScheduleRecord)
    assert_type(await hf.schedules.aadd("b", remind, every=timedelta(hours=1), queue=None), ScheduleRecord)
    assert_type(await hf.schedules.achange("a", at=datetime.now(UTC)), ScheduleRecord)
    assert_type(hf.schedules.next("a", 5), list[datetime])
    assert_type(hf.schedules.ticks("a"), list[TickRecord])
    assert_type(hf.schedules.get("a").plan, Plan)
    assert_type(await hf.schedules.arun("a"), Job[Any])
    assert_type(hf.schedules.remove("a"), None)


def both(task: Task[[int], str]) -> Job[str]:
    return task.enqueue(1)


both(send_receipt)
asynchronous: AsyncTask[[int], str] = send_receipt
synchronous: SyncTask[[str], int] = plain
assert_type(send_receipt.name, str)


# ── calling here and now ─────────────────────────────────────────────────────────────────────────────────────────────


async def call_here() -> None:
    running: Coroutine[Any, Any, str] = send_receipt(1)
    assert_type(await running, str)
    assert_type(await send_receipt(1), str)
    assert_type(await send_receipt(order_id=1), str)
    assert_type(resize("u"), Receipt)
    assert_type(resize("u", 5, crop=True), Receipt)
    assert_type(await refund(1), Receipt)
    assert_type(archive(1, card="tok"), datetime)
    # The context is passed by Holdfast.
    assert_type(await charge("acme", cents=5), str)
    assert_type(shrink("u"), int)
    assert_type(plain(url="u"), int)
    await nothing()
    tick()


# ── producing ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def produce_async(connection: object) -> None:
    assert_type(await send_receipt.aenqueue(1), Job[str])
    assert_type(await resize.aenqueue("u", crop=True), Job[Receipt])
    assert_type(await nothing.aenqueue(), Job[None])
    assert_type(await charge.aenqueue("acme", 5), Job[str])
    assert_type(await charge.options(tx=connection, delay="5m", tags=["vip"]).aenqueue("acme", cents=1), Job[str])
    assert_type(await hf.asend("charge", {"tenant": "acme"}, queue="billing"), Job[Any])
    assert_type(await hf.aenqueue_many(send_receipt.call(i) for i in range(3)), list[Job[str]])
    async with hf as app:
        assert_type(app, Holdfast)
    await hf.apublish_tasks()
    await hf.aclose()


def produce(connection: object, id: UUID) -> None:
    assert_type(send_receipt.enqueue(1), Job[str])
    assert_type(resize.enqueue("u", 100), Job[Receipt])
    assert_type(archive.enqueue(1, card="tok"), Job[datetime])
    assert_type(shrink.enqueue("u"), Job[int])
    assert_type(tick.enqueue(), Job[None])
    assert_type(send_receipt.call(1), Call[str])
    assert_type(refund.options(delay=5).call(1), Call[Receipt])
    assert_type(hf.send("charge"), Job[Any])
    assert_type(hf.send("charge", {"tenant": "acme"}, priority="low", wait=0), Job[Any])
    assert_type(
        send_receipt.options(
            tx=connection,
            queue="q",
            priority=9,
            at=datetime.now(UTC),
            expires=datetime.now(UTC),
            idempotency_key="k",
            tags=("a", "b"),
            context={"trace": "x", "depth": 1},
            id=id,
            wait="1s",
        ).enqueue(1),
        Job[str],
    )
    assert_type(send_receipt.options(at="2026-12-31T23:59:59Z", expires="1h", id="…").enqueue(1), Job[str])
    hf.publish_tasks()
    hf.close()


def produce_many(connection: object) -> None:
    assert_type(hf.enqueue_many([send_receipt.call(1), charge.call("acme")]), list[Job[str]])
    mixed: list[Call[str | Receipt]] = [send_receipt.call(1), refund.call(1)]
    assert_type(hf.enqueue_many(mixed, tx=connection, wait="1s"), list[Job[str | Receipt]])
    hf.enqueue_many([send_receipt.call(1), refund.call(1), nothing.call()])
    anything: list[Call[object]] = [nothing.call(), refund.call(1)]
    assert_type(hf.enqueue_many(anything), list[Job[object]])


# ── handles ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def look_async(id: UUID) -> None:
    assert_type(await send_receipt.job(id).aresult(), str)
    assert_type(await resize.job("…").aresult(timeout="10s"), Receipt)
    assert_type(await hf.job(id).aresult(), Any)
    job = await refund.aenqueue(1)
    assert_type((await job.aresult(timeout=timedelta(seconds=1))).order, int)
    assert_type(await job.astate(), JobState)
    assert_type(await job.arecord(), JobRecord)
    assert_type(await job.aattempts(), list[Attempt])
    await job.acancel(reason="twice")
    await job.aretry()
    await job.aretry({"order_id": 2})
    await job.arun_now()


def result_of(job: Job[object]) -> object:
    return job.result()


def look(id: UUID) -> None:
    assert_type(send_receipt.job(id), Job[str])
    assert_type(send_receipt.job(id).result(timeout=1.5), str)
    assert_type(archive.enqueue(1, "tok").result(), datetime)
    assert_type(shrink.job(id).result(), int)
    assert_type(hf.job(str(id)), Job[Any])
    job = send_receipt.enqueue(1)
    assert_type(job.id, UUID)
    assert_type(job.existing, bool)
    assert_type(job.state(), JobState)
    assert_type(job.explain(), Explanation)
    assert_type(job.explain().reasons, tuple[Reason, ...])
    assert_type(job.record().args, dict[str, Any])
    # A handle on something narrower is a handle on something wider.
    assert_type(result_of(job), object)
    job.cancel()
    job.retry()
    job.run_now()


# ── namespaces ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def steer_async(id: UUID) -> None:
    assert_type(await hf.jobs.aget(id), JobRecord)
    assert_type(await hf.jobs.apage(state=JobState.DEAD, limit=5), Page)
    assert_type(await hf.dead.acount(task="charge"), int)
    await hf.queues.abound("email", None)


def steer(id: UUID) -> None:
    page = hf.jobs.page(state=["pending", JobState.DEAD], queue="q", tags=["vip"], args={"a.b": 1}, cursor=id)
    assert_type(page.jobs, list[JobRecord])
    assert_type(page.next_cursor, UUID | None)
    assert_type(hf.jobs.count(state="pending", since=datetime.now(UTC)), int)
    assert_type(hf.jobs.cancel(task="charge", reason="stop").changed, int)
    assert_type(hf.dead.retry(everything=True).skipped, int)
    assert_type(hf.dead.discard(error_type="ValueError").changed, int)
    assert_type(hf.queues.list(), list[QueueRecord])
    assert_type(hf.workers.list(), list[WorkerRecord])
    assert_type(hf.jobs.explain(id), Explanation)
    assert_type(hf.jobs.explain(id).reasons[0].kind, ReasonKind)
    assert_type(hf.limits.list("charge", kind="rate"), list[LimitRecord])
    assert_type(hf.limits.set("charge", 5, key="acme").most, int | None)
    assert_type(hf.limits.reset("charge", kind="rate"), LimitRecord)
    hf.queues.bound("email", 5)
    hf.queues.pause("email")
    hf.queues.resume("email")


# ── testing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def try_it(id: UUID) -> None:
    with hf.testing() as t:
        assert_type(t, Rehearsal)
        assert_type(t.run_all(), int)
        assert_type(t.run_all(most=5), int)
        assert_type(t.advance("1h"), datetime)
        assert_type(t.now, datetime)
        assert_type(t.assert_enqueued(send_receipt, 1), JobRecord)
        assert_type(t.assert_enqueued(send_receipt, order_id=1), JobRecord)
        t.assert_enqueued(resize, "u", 100, crop=True)
        t.assert_enqueued(charge, "acme", cents=5)
        t.assert_enqueued(tick)
        t.assert_not_enqueued(shrink)
        t.assert_nothing_enqueued()
        assert_type(t.enqueued, list[JobRecord])
        assert_type(t.dead, list[JobRecord])
        assert_type(t.jobs(send_receipt), list[Job[str]])
        assert_type(t.jobs(resize)[0].result(), Receipt)
        t.crash_worker("before_settle")


async def try_it_async() -> None:
    async with hf.testing("sqlite:///test.db", inline=True) as t:
        assert_type(t, Rehearsal)
        assert_type(await t.arun_all(), int)
