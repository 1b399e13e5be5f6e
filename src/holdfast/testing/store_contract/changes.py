"""Hints: whoever waits is woken soon, in this store object and in others on the same database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.errors import QueueFull
from holdfast.lifecycle import Bury, Complete, GiveBack, Withdraw
from holdfast.store import Hint, HintKind, Store
from holdfast.testing.store_contract.harness import FAILURE, Harness

SOON = 3.0
MINUTE = timedelta(minutes=1)


async def await_hint(hints: AsyncIterator[Hint], kind: HintKind, queue: str = "", id: UUID | None = None) -> None:
    """Wait until a hint of this kind concerns the queue and the job."""
    async with asyncio.timeout(SOON):
        async for hint in hints:
            names_queue = not queue or not hint.queues or queue in hint.queues
            if hint.kind is kind and names_queue and (id is None or hint.concerns([id])):
                return
    raise AssertionError("the hints came to an end")


@asynccontextmanager
async def listening(stores: Iterable[Store], kinds: Iterable[HintKind]) -> AsyncIterator[list[AsyncIterator[Hint]]]:
    """Listen on each of the stores."""
    wanted = list(kinds)
    first, second = stores
    async with first.changes(wanted) as one:
        if second is first:
            yield [one]
        else:
            async with second.changes(wanted) as other:
                yield [one, other]


class ChangeContract:
    async def test_enqueued_work_is_hinted_at(self, harness: Harness) -> None:
        async with listening(harness.hearers(), [HintKind.WORK]) as listeners:
            await harness.enqueue(queue="urgent")
            for hints in listeners:
                await await_hint(hints, HintKind.WORK, "urgent")

    async def test_work_that_becomes_ready_in_any_other_way_is_hinted_at(self, harness: Harness) -> None:
        scheduled = await harness.enqueue(queue="run-now", delay=MINUTE)
        dead = await harness.dead(queue="retry")
        released = await harness.start(queue="release")
        worker = await harness.worker()
        await harness.start(worker, queue="rescue")
        departing = await harness.worker()
        await harness.start(departing, queue="depart")
        store = harness.store
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "run-now": lambda: store.run_now([scheduled]),
            "retry": lambda: store.retry([dead]),
            "release": lambda: harness.settle(released, GiveBack()),
            "rescue": lambda: store.bury_worker(worker),
            "depart": lambda: store.depart(departing),
        }
        for queue, make_ready in ways.items():
            async with store.changes([HintKind.WORK]) as hints:
                await make_ready()
                await await_hint(hints, HintKind.WORK, queue)

    async def test_work_that_has_become_due_is_hinted_at(self, harness: Harness) -> None:
        await harness.enqueue(queue="later", delay=MINUTE)
        async with listening(harness.hearers(), [HintKind.WORK]) as listeners:
            await harness.pass_time(MINUTE)
            for hints in listeners:
                await await_hint(hints, HintKind.WORK, "later")

    async def test_a_finished_job_is_hinted_at(self, harness: Harness) -> None:
        stores = harness.hearers()
        for end in (Complete("1"), Bury(FAILURE), Withdraw("no")):
            claimed = await harness.start()
            async with listening(stores, [HintKind.FINISHED]) as listeners:
                await harness.settle(claimed, end)
                for hints in listeners:
                    await await_hint(hints, HintKind.FINISHED, id=claimed.id)

    async def test_a_waiting_job_that_is_cancelled_or_expires_has_finished(self, harness: Harness) -> None:
        cancelled, expiring = await harness.enqueue(), await harness.enqueue(expires_in=MINUTE)
        async with harness.store.changes([HintKind.FINISHED]) as hints:
            await harness.store.cancel([cancelled], "no")
            await await_hint(hints, HintKind.FINISHED, id=cancelled)
        async with harness.store.changes([HintKind.FINISHED]) as hints:
            await harness.pass_time(MINUTE)
            await await_hint(hints, HintKind.FINISHED, id=expiring)

    async def test_the_cancellation_of_a_running_job_is_hinted_at(self, harness: Harness) -> None:
        claimed = await harness.start()
        async with listening(harness.hearers(), [HintKind.CANCEL]) as listeners:
            await harness.store.cancel([claimed.id], "no")
            for hints in listeners:
                await await_hint(hints, HintKind.CANCEL, id=claimed.id)

    async def test_control_of_a_queue_is_hinted_at(self, harness: Harness) -> None:
        stores = harness.hearers()
        changes: tuple[Callable[[], Awaitable[None]], ...] = (
            lambda: harness.store.pause("default"),
            lambda: harness.store.resume("default"),
            lambda: harness.store.set_bound("default", 7),
        )
        for change in changes:
            async with listening(stores, [HintKind.CONTROL]) as listeners:
                await change()
                for hints in listeners:
                    await await_hint(hints, HintKind.CONTROL, "default")

    async def test_a_worker_that_is_asked_to_be_quiet_is_named_in_a_hint(self, harness: Harness) -> None:
        worker = await harness.worker()
        async with listening(harness.hearers(), [HintKind.CONTROL]) as listeners:
            await harness.store.quiet(worker)
            for hints in listeners:
                async with asyncio.timeout(SOON):
                    while worker not in (await anext(hints)).ids:
                        pass

    async def test_room_in_a_full_queue_is_hinted_at(self, harness: Harness) -> None:
        stores = harness.hearers()
        worker = await harness.worker()
        await harness.store.set_bound("small", 2)
        ids = await harness.enqueue_many(2, queue="small")
        with pytest.raises(QueueFull):
            await harness.enqueue(queue="small")
        async with listening(stores, [HintKind.ROOM]) as listeners:
            await harness.claim(worker, queue="small")
            for hints in listeners:
                await await_hint(hints, HintKind.ROOM, "small")
        await harness.enqueue(queue="small")
        async with listening(stores, [HintKind.ROOM]) as listeners:
            await harness.store.cancel([ids[1]], "no")
            for hints in listeners:
                await await_hint(hints, HintKind.ROOM, "small")
        await harness.enqueue(queue="small")
        async with listening(stores, [HintKind.ROOM]) as listeners:
            await harness.store.set_bound("small", 3)
            for hints in listeners:
                await await_hint(hints, HintKind.ROOM, "small")

    async def test_only_the_kinds_asked_for_come(self, harness: Harness) -> None:
        async with harness.store.changes([HintKind.CONTROL]) as hints:
            await harness.completed()
            await harness.store.pause("default")
            async with asyncio.timeout(SOON):
                assert (await anext(hints)).kind is HintKind.CONTROL

    async def test_many_listeners_are_all_woken(self, harness: Harness) -> None:
        async def listen(ready: asyncio.Event) -> None:
            async with harness.store.changes([HintKind.WORK]) as hints:
                ready.set()
                await await_hint(hints, HintKind.WORK, "default")

        events = [asyncio.Event() for _ in range(10)]
        async with asyncio.TaskGroup() as group:
            for event in events:
                group.create_task(listen(event))
            for event in events:
                await event.wait()
            await harness.enqueue()

    async def test_a_listener_that_leaves_disturbs_nobody(self, harness: Harness) -> None:
        async with harness.store.changes([HintKind.WORK]) as hints:
            async with harness.store.changes([HintKind.WORK]):
                pass
            leaver = asyncio.create_task(self._listen_for_ever(harness))
            await asyncio.sleep(0)
            leaver.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaver
            await harness.enqueue()
            await await_hint(hints, HintKind.WORK, "default")

    async def _listen_for_ever(self, harness: Harness) -> None:
        async with harness.store.changes([HintKind.WORK]) as hints:
            async for _ in hints:
                pass
