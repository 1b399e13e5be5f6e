"""Jobs for these tests, and short ways to bring them somewhere."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID, uuid4

from holdfast.codec import fingerprint
from holdfast.ids import Ids
from holdfast.job import ClaimedJob, Failure, FailureKind, NewJob
from holdfast.lifecycle import Bury, Transition
from holdfast.store import NewWorker, Settled, Settlement
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.office import Office

QUEUE: Final = "faults"
FAILURE: Final = Failure(FailureKind.ERROR, "shop.NoSuchOrder", "order 17 is gone", "Traceback …")

ids = Ids()


def new(**options: Any) -> NewJob:
    settings: dict[str, Any] = {"id": ids.make(), "task": "task", "queue": QUEUE, "args_json": '{"a":1}'}
    if options.get("idempotency_key") is not None:
        settings["fingerprint"] = fingerprint(settings["args_json"])
    return NewJob(**(settings | options))


async def register(store: PostgresStore) -> UUID:
    worker = uuid4()
    await store.register(NewWorker(worker, "worker", queues=(QUEUE,)))
    return worker


async def enqueue(store: PostgresStore, count: int = 1, **options: Any) -> list[UUID]:
    return [answer.id for answer in await store.enqueue([new(**options) for _ in range(count)])]


async def claim(store: PostgresStore, worker: UUID, slots: int = 1, queue: str = QUEUE) -> list[ClaimedJob]:
    return await store.claim(worker, uuid4(), {queue: slots})


async def start(store: PostgresStore, worker: UUID, count: int = 1, **options: Any) -> list[ClaimedJob]:
    """Jobs that run."""
    options.setdefault("queue", f"queue-{uuid4()}")
    enqueued = await enqueue(store, count, **options)
    claimed = await claim(store, worker, count, options["queue"])
    assert [job.id for job in claimed] == enqueued
    return claimed


async def settle(store: PostgresStore, jobs: list[ClaimedJob], transition: Transition) -> list[Settled]:
    return await store.settle([Settlement(job.id, job.token, transition) for job in jobs])


async def bury(store: PostgresStore, worker: UUID, count: int = 1, **options: Any) -> list[UUID]:
    """Dead letters."""
    started = await start(store, worker, count, **options)
    assert await settle(store, started, Bury(FAILURE)) == [Settled.APPLIED] * count
    return [job.id for job in started]


async def office_of(store: PostgresStore) -> Office:
    """What a store has of the database on this event loop."""
    return await store._offices.here()
