"""Handlers of dead letters are told, also when their queue is full."""

from __future__ import annotations

from uuid import uuid4

import pytest

from holdfast import DeadJob, Holdfast, QueueFull
from holdfast.job import Failure, FailureKind
from holdfast.lifecycle import Bury
from holdfast.maintenance.undertaker import Undertaker
from holdfast.store import Filter, NewWorker, Settlement


async def test_a_full_queue_does_not_keep_a_handler_from_being_told(hf: Holdfast) -> None:
    @hf.task(queue="work")
    async def fail() -> None: ...

    @fail.on_dead
    async def page_someone(job: DeadJob) -> None: ...

    @hf.task
    async def other() -> None: ...

    await hf.apublish_tasks()
    store, worker, token = hf.engine.store, uuid4(), uuid4()
    job = await fail.aenqueue()
    await store.register(NewWorker(worker, "worker"))
    assert len(await store.claim(worker, token, {"work": 1})) == 1
    await store.settle([Settlement(job.id, token, Bury(Failure(FailureKind.ERROR, "ValueError", "no")))])
    await hf.queues.abound("default", 1)
    await other.aenqueue()
    with pytest.raises(QueueFull):
        await other.options(wait=0).aenqueue()

    await Undertaker(lambda: store).act()

    assert await store.count(Filter(task="page_someone")) == 1
    assert await store.unannounced(10) == []
    (queue,) = [each for each in await store.queues() if each.name == "default"]
    assert queue.waiting == 2, "it is not refused, but it counts"
