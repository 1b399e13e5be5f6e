"""Bounds: a queue takes exactly as many jobs as it was given room for, and nothing else is ever refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast.errors import InvalidOption, QueueFull
from holdfast.job import JobState
from holdfast.lifecycle import GiveBack
from holdfast.store import Enqueued, Filter, Queue, Settled
from holdfast.testing.store_contract.harness import FAILURE, Harness

HOUR = timedelta(hours=1)


class BoundContract:
    async def test_a_queue_takes_exactly_its_bound(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("small", bound=3)])
        for _ in range(3):
            await harness.enqueue(queue="small")
        with pytest.raises(QueueFull) as refusal:
            await harness.enqueue(queue="small")
        assert refusal.value.queue == "small"
        assert refusal.value.retry_after > 0
        assert (await harness.queue("small")).waiting == 3

    async def test_a_batch_that_fills_the_queue_is_taken_and_one_more_is_not(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("small", bound=3)])
        with pytest.raises(QueueFull):
            await harness.enqueue_many(4, queue="small")
        assert await harness.store.count(Filter()) == 0
        await harness.enqueue_many(3, queue="small")
        assert (await harness.queue("small")).waiting == 3

    async def test_a_refused_batch_leaves_nothing_in_any_queue(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("small", bound=1)])
        jobs = [
            harness.new(queue="large", idempotency_key="k"),
            harness.new(queue="small"),
            harness.new(queue="small"),
        ]
        with pytest.raises(QueueFull):
            await harness.store.enqueue(jobs)
        assert await harness.store.count(Filter()) == 0
        await harness.check_counters()
        again = harness.new({"other": 1}, queue="large", idempotency_key="k")
        assert await harness.store.enqueue([again]) == [Enqueued(again.id)]

    async def test_scheduled_jobs_have_a_bound_of_their_own(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("small", bound=1, scheduled_bound=2)])
        await harness.enqueue_many(2, queue="small", delay=HOUR)
        await harness.enqueue(queue="small")
        for delay in (None, HOUR):
            with pytest.raises(QueueFull):
                await harness.enqueue(queue="small", delay=delay)
        queue = await harness.queue("small")
        assert (queue.waiting, queue.scheduled) == (1, 2)

    async def test_a_bound_is_a_queue_s_own(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("small", bound=1)])
        await harness.enqueue(queue="small")
        await harness.enqueue_many(5, queue="other")

    async def test_a_job_that_is_there_already_needs_no_room(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        id = await harness.enqueue(idempotency_key="k", unique_key="u")
        assert await harness.enqueue(idempotency_key="k") == id
        assert await harness.enqueue(unique_key="u") == id

    async def test_equal_keys_in_one_batch_need_one_place(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        await harness.store.enqueue([harness.new(unique_key="u") for _ in range(3)])
        assert (await harness.queue()).waiting == 1

    async def test_a_claim_makes_room(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        await harness.enqueue()
        await harness.claim()
        await harness.enqueue()
        assert (await harness.queue()).waiting == 1

    async def test_cancelling_makes_room(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        id = await harness.enqueue()
        await harness.store.cancel([id], "no")
        await harness.enqueue()

    async def test_what_is_given_back_is_never_refused(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        first = await harness.start(queue="default")
        second = await harness.start(queue="default")
        await harness.enqueue()
        assert await harness.settle(first, GiveBack()) is Settled.APPLIED
        assert await harness.settle(second, GiveBack(HOUR, is_charged=True, failure=FAILURE)) is Settled.APPLIED
        assert (await harness.queue()).waiting == 3
        with pytest.raises(QueueFull):
            await harness.enqueue()

    async def test_a_job_that_is_exempt_is_never_refused_and_counts(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("small", bound=1, scheduled_bound=1)])
        for new in (
            harness.new(queue="small", is_exempt=True),
            harness.new(queue="small", is_exempt=True),
            harness.new(queue="small", is_exempt=True, is_repeat=True),
            harness.new(queue="small", is_exempt=True, idempotency_key="k"),
            harness.new(queue="small", is_exempt=True, unique_key="u"),
        ):
            assert await harness.store.enqueue([new]) == [Enqueued(new.id)]
        await harness.enqueue_many(2, queue="small", is_exempt=True, delay=HOUR)
        queue = await harness.queue("small")
        assert (queue.waiting, queue.scheduled) == (5, 2)
        for delay in (None, HOUR):
            with pytest.raises(QueueFull):
                await harness.enqueue(queue="small", delay=delay)
        assert len(await harness.claim(demand=10, queue="small")) == 5
        await harness.enqueue(queue="small")
        await harness.check_counters()

    async def test_exempt_jobs_take_their_room_before_the_others_of_their_batch(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("small", bound=2, scheduled_bound=2)])
        for delay in (None, HOUR):
            exempt = [harness.new(queue="small", is_exempt=True, delay=delay) for _ in range(2)]
            other = harness.new(queue="small", delay=delay)
            with pytest.raises(QueueFull):
                await harness.store.enqueue([other, *exempt])
            assert await harness.store.get([other.id, *(new.id for new in exempt)]) == []
            await harness.store.enqueue([other, exempt[0]])
            await harness.store.enqueue([exempt[1]])
        queue = await harness.queue("small")
        assert (queue.waiting, queue.scheduled) == (3, 3)
        await harness.check_counters()

    async def test_exempt_jobs_and_others_race_and_only_the_others_are_refused(self, harness: Harness) -> None:
        stores = harness.pair()
        await harness.store.declare_queues([Queue("small", bound=10)])
        calls = [stores[n % 2].enqueue([harness.new(queue="small", is_exempt=n % 4 < 2)]) for n in range(60)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, list) for n, outcome in enumerate(outcomes) if n % 4 < 2)
        others = [outcome for n, outcome in enumerate(outcomes) if n % 4 >= 2]
        assert all(isinstance(outcome, list | QueueFull) for outcome in others)
        assert sum(isinstance(outcome, list) for outcome in others) <= 10
        await harness.check_counters()

    async def test_a_person_s_retry_is_never_refused(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        id = await harness.dead(queue="default")
        await harness.enqueue()
        assert (await harness.store.retry([id]))[id].is_done
        assert await harness.state(id) is JobState.PENDING
        assert (await harness.queue()).waiting == 2

    async def test_what_becomes_due_is_never_refused(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        await harness.enqueue_many(3, delay=HOUR)
        later = await harness.enqueue(delay=2 * HOUR)
        await harness.enqueue()
        await harness.pass_time(HOUR)
        await harness.store.run_now([later])
        queue = await harness.queue()
        assert (queue.waiting, queue.scheduled) == (5, 0)

    async def test_a_job_that_failed_fills_its_queue_while_it_waits_for_its_retry(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        await harness.ended(GiveBack(HOUR, is_charged=True, failure=FAILURE), queue="default")
        queue = await harness.queue()
        assert (queue.waiting, queue.scheduled) == (1, 0)
        with pytest.raises(QueueFull):
            await harness.enqueue()

    async def test_a_bound_below_the_depth_refuses_until_there_is_room(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5)
        await harness.store.set_bound("default", 2)
        assert len(await harness.store.get(ids)) == 5
        worker = await harness.worker()
        for _ in range(3):
            with pytest.raises(QueueFull):
                await harness.enqueue()
            await harness.claim(worker)
        with pytest.raises(QueueFull):
            await harness.enqueue()
        await harness.claim(worker)
        await harness.enqueue()

    async def test_a_bound_that_is_raised_lets_jobs_in_at_once(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        await harness.enqueue()
        await harness.store.set_bound("default", 2)
        await harness.enqueue()
        await harness.store.set_bound("default", None)
        await harness.enqueue()

    async def test_a_refusal_without_new_jobs_does_not_happen(self, harness: Harness) -> None:
        await harness.enqueue_many(3)
        await harness.store.set_bound("default", 1)
        await harness.enqueue(queue="other")
        assert await harness.store.enqueue([]) == []

    async def test_a_bound_makes_sense(self, harness: Harness) -> None:
        for bound in (0, -1, 2_000_000_000, True):
            with pytest.raises(InvalidOption):
                await harness.store.set_bound("default", bound)

    async def test_racing_producers_fill_the_queue_exactly(self, harness: Harness) -> None:
        stores = harness.pair()
        await harness.store.declare_queues([Queue("small", bound=30)])
        calls = [stores[n % 2].enqueue([harness.new(queue="small")]) for n in range(50)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(outcome, QueueFull) for outcome in outcomes) == 20
        assert sum(isinstance(outcome, list) for outcome in outcomes) == 30
        assert (await harness.queue("small")).waiting == 30
        assert await harness.store.count(Filter(queue="small")) == 30

    async def test_racing_batches_never_exceed_the_bound(self, harness: Harness) -> None:
        stores = harness.pair()
        await harness.store.declare_queues([Queue("small", bound=30)])
        batches = [[harness.new(queue="small") for _ in range(size)] for size in (7, 1, 4, 9, 2) * 10]
        outcomes = await asyncio.gather(
            *(stores[n % 2].enqueue(batch) for n, batch in enumerate(batches)), return_exceptions=True
        )
        taken = sum(len(outcome) for outcome in outcomes if isinstance(outcome, list))
        assert taken == await harness.store.count(Filter(queue="small")) <= 30
        assert taken > 21, "the largest batch is of 9, so nothing may be refused before that"
        assert all(isinstance(outcome, list | QueueFull) for outcome in outcomes)
