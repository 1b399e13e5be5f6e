"""A store's own life: opened, closed, shared between loops and threads, and left by callers in the middle of a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID, uuid4

from holdfast.errors import QueueFull
from holdfast.job import JobState
from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import Enqueued, Filter, Held, Settled, Settlement
from holdfast.testing.store_contract.harness import Harness, ids_of


class LifetimeContract:
    async def test_a_store_opens_by_itself_and_more_than_once(self, harness: Harness) -> None:
        await harness.enqueue()
        await harness.store.open()
        await harness.store.open()
        assert await harness.store.count(Filter()) == 1

    async def test_a_closed_store_opens_again_on_use(self, harness: Harness) -> None:
        id = await harness.enqueue()
        await harness.store.close()
        await harness.store.close()
        assert await harness.exists(id)
        await harness.enqueue()
        assert (await harness.queue()).waiting == 2

    async def test_closing_finishes_what_is_under_way(self, harness: Harness) -> None:
        calls = [asyncio.create_task(harness.store.enqueue([harness.new()])) for _ in range(20)]
        await asyncio.sleep(0)
        await harness.store.close()
        answers = await asyncio.gather(*calls)
        assert len(await harness.store.get([answer.id for [answer] in answers])) == 20

    async def test_another_store_object_sees_the_same_jobs(self, harness: Harness) -> None:
        one, other = harness.pair()
        id = await harness.enqueue({"a": 1}, idempotency_key="k")
        assert await other.get([id]) == await one.get([id])
        [claimed] = await other.claim(await harness.worker(), uuid4(), {"default": 1})
        assert await one.settle([Settlement(id, claimed.token, Complete("1"))]) == [Settled.APPLIED]
        assert (await harness.record(id, other)).state is JobState.COMPLETED
        assert await other.enqueue([harness.new({"a": 1}, idempotency_key="k")]) == [Enqueued(id, is_existing=True)]

    async def test_one_store_object_serves_many_threads_and_loops(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed: list[UUID] = []
        errors: list[BaseException] = []

        async def work(jobs: list[UUID]) -> None:
            batch = [harness.new(id=id) for id in jobs]
            await asyncio.gather(*(harness.store.enqueue([job]) for job in batch))
            for _ in range(len(jobs)):
                got = await harness.store.claim(worker, uuid4(), {"default": 1})
                claimed.extend(ids_of(got))
                await harness.store.settle([Settlement(job.id, job.token, Complete()) for job in got])

        def run(jobs: list[UUID]) -> None:
            try:
                asyncio.run(work(jobs))
            except BaseException as error:
                errors.append(error)

        ids = harness.ids.make_many(40)
        threads = [threading.Thread(target=run, args=(ids[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert errors == []
        assert sorted(claimed) == ids
        assert await harness.store.count(Filter(states=frozenset({JobState.COMPLETED}))) == 40


class CancellationContract:
    async def test_cancelling_one_caller_of_enqueue_disturbs_no_other(self, harness: Harness) -> None:
        """A cancelled call has happened whole or not at all, and all the others succeed."""
        for turns in range(8):
            batches = [[harness.new(), harness.new(queue="other")] for _ in range(12)]
            keyed = [[harness.new(idempotency_key=f"{turns}-{n}")] for n in range(6)]
            calls = [asyncio.create_task(harness.store.enqueue(batch)) for batch in (*batches, *keyed)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for call in calls[::3]:
                call.cancel()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for n, (batch, outcome) in enumerate(zip((*batches, *keyed), outcomes, strict=True)):
                found = ids_of(await harness.store.get([job.id for job in batch]))
                if n % 3 and not isinstance(outcome, list):
                    raise AssertionError(f"a caller that was not cancelled got {outcome!r}")
                assert found in ([], [job.id for job in batch])
                assert not isinstance(outcome, list) or len(found) == len(batch)
        await harness.check_counters()

    async def test_cancelling_one_caller_of_settle_disturbs_no_other(self, harness: Harness) -> None:
        worker = await harness.worker()
        for turns in range(8):
            await harness.enqueue_many(12)
            claimed = await harness.claim(worker, 12)
            settlements = [Settlement(job.id, job.token, Complete("1")) for job in claimed]
            calls = [asyncio.create_task(harness.store.settle([settlement])) for settlement in settlements]
            for _ in range(turns):
                await asyncio.sleep(0)
            for call in calls[::3]:
                call.cancel()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            uncancelled = [outcome for n, outcome in enumerate(outcomes) if n % 3]
            assert uncancelled == [[Settled.APPLIED]] * 8
            replayed = await harness.store.settle(settlements)
            assert Settled.STALE not in replayed
            assert all(replayed[n] is Settled.ALREADY for n in range(12) if n % 3)
        await harness.check_counters()

    async def test_a_refused_caller_disturbs_no_other(self, harness: Harness) -> None:
        await harness.store.set_bound("small", 3)
        batches = [[harness.new(queue="small")] if n % 2 else [harness.new()] for n in range(20)]
        outcomes = await asyncio.gather(*(harness.store.enqueue(batch) for batch in batches), return_exceptions=True)
        assert all(isinstance(outcome, list) for outcome in outcomes[::2])
        assert sum(isinstance(outcome, QueueFull) for outcome in outcomes[1::2]) == 7
        assert await harness.store.count(Filter()) == 13

    async def test_a_store_stays_usable_after_cancellation_anywhere(self, harness: Harness) -> None:
        worker = await harness.worker()
        id = await harness.enqueue(delay=timedelta(minutes=1))
        store = harness.store
        verbs: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: store.enqueue([harness.new(queue="cancelled")]),
            lambda: store.claim(worker, uuid4(), {"nothing": 1}),
            lambda: store.settle([Settlement(id, uuid4(), GiveBack())]),
            store.tick,
            lambda: store.cancel([uuid4()], "no"),
            lambda: store.retry([id]),
            lambda: store.discard([id]),
            store.prune,
            lambda: store.beat(worker, Held({})),
            store.sightings,
            lambda: store.rescue({}),
            store.workers,
            store.queues,
            store.tasks,
            lambda: store.get([id]),
            lambda: store.page(Filter()),
            lambda: store.count(Filter()),
            lambda: store.attempts(id),
        )
        for verb in verbs:
            for turns in range(4):
                call = asyncio.ensure_future(verb())
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
        # By another worker: a beat of the first one may still be under way, and says that it holds nothing.
        another = await harness.worker()
        async with asyncio.timeout(10):
            fresh = await harness.enqueue()
            [claimed] = await harness.claim(another)
            assert claimed.id == fresh
            assert await harness.settle(claimed, Complete()) is Settled.APPLIED
        await harness.check_counters()
