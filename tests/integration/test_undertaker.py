"""Handlers of dead letters are told, also when their queue is full, and whatever stands in the dead letters."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import DeadJob, Holdfast, InvalidPayload, QueueFull
from holdfast.dead import announcement
from holdfast.job import Failure, FailureKind, JobRecord, NewJob
from holdfast.lifecycle import Bury
from holdfast.maintenance.undertaker import Undertaker
from holdfast.store import Filter, NewWorker, Settlement, TaskDefinition

UNREADABLE = [
    "not json",
    "[1]",
    "null",
    "{",
    '{"order":"\\ud800"}',
    '{"order":123456789012345678901234567890}',
    '{"order":1e999999}',
    '{"order":' + "[" * 100 + "]" * 100 + "}",
    '{"order":' + "[" * 5000 + "]" * 5000 + "}",
    '{"order":"' + "x" * 300_000 + '"}',
]
"""What other languages may have enqueued as arguments."""


async def _bury(hf: Holdfast, *texts: str) -> list[UUID]:
    """Dead letters of the task `fail`, with these arguments, in this order."""
    store, worker = hf.engine.store, uuid4()
    await store.register(NewWorker(worker, "worker"))
    failure = Failure(FailureKind.INVALID, "InvalidPayload", "no")
    buried: list[UUID] = []
    for text in texts:
        new, token = NewJob(hf.engine.ids.make(), "fail", "work", text), uuid4()
        await store.enqueue([new])
        assert len(await store.claim(worker, token, {"work": 1})) == 1
        await store.settle([Settlement(new.id, token, Bury(failure))])
        buried.append(new.id)
    return buried


def _nested(depth: int) -> Any:
    """A value that makes arguments of so many levels."""
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return value


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


async def test_a_dead_letter_that_cannot_be_read_is_told_as_it_is_and_does_not_silence_others(hf: Holdfast) -> None:
    told: asyncio.Queue[DeadJob] = asyncio.Queue()

    @hf.task(queue="work")
    async def fail(order: int) -> None: ...

    @fail.on_dead
    async def page_someone(job: DeadJob) -> None:
        told.put_nowait(job)

    await hf.apublish_tasks()
    ids = await _bury(hf, *UNREADABLE, '{"order":7}')
    async with hf.worker(), asyncio.timeout(30):
        heard = {job.id: job for job in [await told.get() for _ in ids]}
        while await hf.engine.store.unannounced(100):  # noqa: ASYNC110 - it is written down behind the handlers' jobs
            await asyncio.sleep(0.02)
    assert [(heard[id].args, heard[id].unreadable_args) for id in ids] == [
        *(({}, text[:4000]) for text in UNREADABLE),
        ({"order": 7}, None),
    ]


async def test_a_dead_letter_that_nobody_can_be_told_of_is_logged_and_left(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.task(queue="work")
    async def fail(order: int) -> None: ...

    @fail.on_dead
    async def page_someone(job: DeadJob) -> None: ...

    def make_some(job: JobRecord, handler: TaskDefinition) -> NewJob:
        if job.id == bad:
            raise ValueError("planned")
        return announcement(job, handler)

    await hf.apublish_tasks()
    bad, _ = await _bury(hf, '{"order":6}', '{"order":7}')
    monkeypatch.setattr("holdfast.maintenance.undertaker.announcement", make_some)
    store = hf.engine.store
    await Undertaker(lambda: store).act()
    assert await store.unannounced(10) == []
    assert await store.count(Filter(task="page_someone", args={"job.args.order": 7})) == 1
    assert await store.count(Filter(task="page_someone")) == 1
    assert f"page_someone can't be told that fail {bad} is dead" in caplog.text


async def test_an_announcement_that_the_store_refuses_does_not_hold_up_the_others(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.task(queue="work")
    async def fail(order: int) -> None: ...

    @fail.on_dead
    async def page_someone(job: DeadJob) -> None: ...

    await hf.apublish_tasks()
    await _bury(hf, '{"order":6}', '{"order":7}')
    store = hf.engine.store
    enqueue = store.enqueue

    async def refuse(jobs: list[NewJob]) -> Any:
        if any('"order":6' in new.args_json for new in jobs):
            raise InvalidPayload("planned")
        return await enqueue(jobs)

    monkeypatch.setattr(store, "enqueue", refuse)
    await Undertaker(lambda: store).act()
    assert await store.unannounced(10) == []
    assert await store.count(Filter(task="page_someone")) == 1
    assert "planned" in caplog.text


@pytest.mark.parametrize("depth", [62, 63, 64])
async def test_arguments_that_are_as_deep_as_they_may_be_are_told(hf: Holdfast, depth: int) -> None:
    told: asyncio.Queue[DeadJob] = asyncio.Queue()

    @hf.task(queue="work")
    async def fail(order: Any) -> None: ...

    @hf.on_dead
    async def page_someone(job: DeadJob) -> None:
        told.put_nowait(job)

    await hf.apublish_tasks()
    order = _nested(depth)
    fail.call(order)  # its own task takes it
    await _bury(hf, json.dumps({"order": order}))
    async with hf.worker(), asyncio.timeout(30):
        job = await told.get()
    assert (job.args, job.unreadable_args) == ({"order": order}, None)


async def test_what_a_task_hides_its_handlers_hide_too(hf: Holdfast) -> None:
    @hf.task(redact=["card"])
    async def charge(card: str) -> None: ...

    @hf.task
    async def greet(name: str) -> None: ...

    @charge.on_dead
    async def of_charges(job: DeadJob) -> None: ...

    @hf.on_dead
    async def of_all(job: DeadJob) -> None: ...

    @greet.on_dead
    async def of_greetings(job: DeadJob) -> None: ...

    await hf.apublish_tasks()
    hidden = {each.definition.name: each.definition.redact for each in await hf.engine.store.tasks()}
    assert hidden == {
        "charge": ("card",),
        "greet": (),
        "of_charges": ("job",),
        "of_all": ("job",),
        "of_greetings": (),
    }
