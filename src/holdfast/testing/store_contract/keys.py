"""Keys: one key, one job, for as long as was promised."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast.errors import IdempotencyConflict
from holdfast.job import JobState
from holdfast.lifecycle import Bury, Complete, GiveBack, Withdraw
from holdfast.store import Enqueued, Filter, Settled, Settlement
from holdfast.testing.store_contract.harness import FAILURE, SECOND, Harness

HOUR = timedelta(hours=1)


class IdempotencyKeyContract:
    async def test_a_repeated_key_returns_the_job_that_has_it(self, harness: Harness) -> None:
        first = await harness.enqueue({"order": 1}, idempotency_key="k")
        answers = await harness.store.enqueue([harness.new({"order": 1}, idempotency_key="k")])
        assert answers == [Enqueued(first, is_existing=True)]
        assert await harness.store.count(Filter()) == 1
        assert (await harness.queue()).waiting == 1

    async def test_a_key_with_other_arguments_is_a_conflict_that_names_the_job(self, harness: Harness) -> None:
        first = await harness.enqueue({"order": 1}, idempotency_key="k")
        with pytest.raises(IdempotencyConflict) as conflict:
            await harness.enqueue({"order": 2}, idempotency_key="k")
        assert conflict.value.existing == first
        assert await harness.store.count(Filter()) == 1

    async def test_the_fingerprint_is_compared_and_not_the_text(self, harness: Harness) -> None:
        first = await harness.enqueue({"order": 1}, idempotency_key="k", fingerprint=b"\x00\xffsame")
        assert await harness.enqueue({"order": 2}, idempotency_key="k", fingerprint=b"\x00\xffsame") == first

    async def test_a_key_without_a_fingerprint_matches_itself(self, harness: Harness) -> None:
        first = await harness.enqueue(idempotency_key="k", fingerprint=None)
        assert await harness.enqueue(idempotency_key="k", fingerprint=None) == first

    async def test_each_task_has_its_own_keys(self, harness: Harness) -> None:
        one = await harness.enqueue({"a": 1}, task="one", idempotency_key="k")
        two = await harness.enqueue({"a": 2}, task="two", idempotency_key="k")
        assert one != two

    async def test_a_key_is_one_over_all_queues(self, harness: Harness) -> None:
        one = await harness.enqueue(queue="one", idempotency_key="k")
        assert await harness.enqueue(queue="two", idempotency_key="k") == one

    async def test_an_idempotency_key_is_not_a_unique_key(self, harness: Harness) -> None:
        one = await harness.enqueue(idempotency_key="k")
        two = await harness.enqueue(unique_key="k")
        assert one != two

    async def test_keys_differ_by_case_and_spaces(self, harness: Harness) -> None:
        ids = {await harness.enqueue(idempotency_key=key) for key in ("k", "K", " k", "k ", "ķ", "k\u0327")}
        assert len(ids) == 6

    async def test_equal_keys_in_one_batch_are_one_job(self, harness: Harness) -> None:
        jobs = [harness.new({"a": 1}, idempotency_key="k") for _ in range(3)]
        answers = await harness.store.enqueue(jobs)
        assert answers == [Enqueued(jobs[0].id), *[Enqueued(jobs[0].id, is_existing=True)] * 2]
        assert await harness.store.count(Filter()) == 1

    async def test_one_key_with_two_payloads_in_one_batch_refuses_the_batch(self, harness: Harness) -> None:
        with pytest.raises(IdempotencyConflict):
            await harness.store.enqueue(
                [harness.new({"a": 1}, idempotency_key="k"), harness.new({"a": 2}, idempotency_key="k")]
            )
        assert await harness.store.count(Filter()) == 0

    async def test_the_key_holds_while_the_job_is_unfinished_however_long(self, harness: Harness) -> None:
        id = await harness.enqueue(idempotency_key="k", delay=timedelta(days=300))
        harness.clock.advance(timedelta(days=299))
        await harness.store.prune()
        assert await harness.enqueue(idempotency_key="k") == id

    async def test_the_key_holds_after_each_end_until_its_retention_has_passed(self, harness: Harness) -> None:
        for key, end in (("complete", Complete("1")), ("bury", Bury(FAILURE)), ("withdraw", Withdraw("no"))):
            id = await harness.ended(end, idempotency_key=key)
            harness.clock.advance(harness.retention.idempotency - SECOND)
            assert await harness.enqueue(idempotency_key=key) == id, key
            harness.clock.advance(2 * SECOND)
            assert await harness.enqueue(idempotency_key=key) != id, key

    async def test_the_retention_of_a_key_starts_at_the_settlement(self, harness: Harness) -> None:
        claimed = await harness.start(idempotency_key="k")
        assert claimed.is_keyed
        harness.clock.advance("90m")
        settlement = Settlement(claimed.id, claimed.token, Complete(), is_keyed=claimed.is_keyed)
        assert await harness.store.settle([settlement]) == [Settled.APPLIED]
        harness.clock.advance(harness.retention.idempotency - SECOND)
        assert await harness.enqueue(idempotency_key="k") == claimed.id

    async def test_a_conflict_is_seen_after_the_end_too(self, harness: Harness) -> None:
        id = await harness.completed(idempotency_key="k", args={"a": 1})
        with pytest.raises(IdempotencyConflict) as conflict:
            await harness.enqueue({"a": 2}, idempotency_key="k")
        assert conflict.value.existing == id
        harness.clock.advance(harness.retention.idempotency + SECOND)
        assert await harness.enqueue({"a": 2}, idempotency_key="k") != id

    async def test_giving_a_job_back_does_not_end_its_key(self, harness: Harness) -> None:
        id = await harness.ended(GiveBack(timedelta(days=2), is_charged=True, failure=FAILURE), idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency + SECOND)
        assert await harness.enqueue(idempotency_key="k") == id

    async def test_cancelling_a_waiting_job_starts_the_retention_of_its_key(self, harness: Harness) -> None:
        id = await harness.enqueue(idempotency_key="k")
        await harness.store.cancel([id], "no")
        harness.clock.advance(harness.retention.idempotency - SECOND)
        assert await harness.enqueue(idempotency_key="k") == id
        harness.clock.advance(2 * SECOND)
        assert await harness.enqueue(idempotency_key="k") != id

    async def test_an_expired_job_starts_the_retention_of_its_key(self, harness: Harness) -> None:
        id = await harness.enqueue(idempotency_key="k", expires_in=HOUR)
        await harness.pass_time(2 * HOUR)
        assert await harness.state(id) is JobState.DEAD
        harness.clock.advance(harness.retention.idempotency - SECOND)
        assert await harness.enqueue(idempotency_key="k") == id
        harness.clock.advance(2 * SECOND)
        assert await harness.enqueue(idempotency_key="k") != id

    async def test_a_discarded_job_leaves_its_key_taken(self, harness: Harness) -> None:
        id = await harness.dead(idempotency_key="k")
        await harness.store.discard([id])
        await harness.store.prune()
        assert await harness.store.enqueue([harness.new(idempotency_key="k")]) == [Enqueued(id, is_existing=True)]
        harness.clock.advance(harness.retention.idempotency + SECOND)
        await harness.store.prune()
        assert await harness.enqueue(idempotency_key="k") != id

    async def test_a_key_that_was_passed_on_is_not_ended_by_its_former_job(self, harness: Harness) -> None:
        old = await harness.dead(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency + SECOND)
        new = await harness.enqueue(idempotency_key="k")
        await harness.store.discard([old])
        harness.clock.advance(harness.retention.idempotency + SECOND)
        await harness.store.prune()
        assert await harness.enqueue(idempotency_key="k") == new

    async def test_racing_enqueues_of_one_key_make_one_job(self, harness: Harness) -> None:
        stores = harness.pair()
        calls = [stores[n % 2].enqueue([harness.new({"a": 1}, idempotency_key="k")]) for n in range(100)]
        answers = [answer for [answer] in await asyncio.gather(*calls)]
        assert len({answer.id for answer in answers}) == 1
        assert sum(not answer.is_existing for answer in answers) == 1
        assert await harness.store.count(Filter()) == 1

    async def test_racing_batches_with_keys_in_any_order_all_succeed(self, harness: Harness) -> None:
        """Batches that take the same keys in opposite orders must neither deadlock nor double a job."""
        stores = harness.pair()
        keys = [f"key-{n}" for n in range(20)]
        batches = [[harness.new(idempotency_key=key) for key in (keys if n % 2 else reversed(keys))] for n in range(20)]
        answers = await asyncio.gather(*(stores[n % 2].enqueue(batch) for n, batch in enumerate(batches)))
        assert len({answer.id for batch in answers for answer in batch}) == 20
        assert await harness.store.count(Filter()) == 20

    async def test_racing_payloads_under_one_key_leave_one_winner(self, harness: Harness) -> None:
        stores = harness.pair()
        jobs = [harness.new({"n": n}, idempotency_key="k") for n in range(20)]
        outcomes = await asyncio.gather(
            *(stores[n % 2].enqueue([job]) for n, job in enumerate(jobs)), return_exceptions=True
        )
        [job] = await harness.everything()
        assert [outcome for outcome in outcomes if not isinstance(outcome, BaseException)] == [[Enqueued(job.id)]]
        conflicts = [outcome for outcome in outcomes if isinstance(outcome, IdempotencyConflict)]
        assert [conflict.existing for conflict in conflicts] == [job.id] * 19


class UniqueKeyContract:
    async def test_an_equal_unfinished_job_is_returned(self, harness: Harness) -> None:
        first = await harness.enqueue({"a": 1}, unique_key="u")
        answers = await harness.store.enqueue([harness.new({"a": 2}, unique_key="u")])
        assert answers == [Enqueued(first, is_existing=True)], "the payload must not be compared"
        assert (await harness.record(first)).args == {"a": 1}

    async def test_a_unique_key_holds_in_every_unfinished_state(self, harness: Harness) -> None:
        id = await harness.enqueue(unique_key="u", delay=HOUR)
        assert await harness.enqueue(unique_key="u") == id
        await harness.pass_time(HOUR)
        assert await harness.enqueue(unique_key="u") == id
        [claimed] = await harness.claim()
        assert await harness.enqueue(unique_key="u") == id
        await harness.settle(claimed, GiveBack(HOUR, is_charged=True, failure=FAILURE))
        assert await harness.enqueue(unique_key="u") == id

    async def test_a_unique_key_is_free_after_each_end(self, harness: Harness) -> None:
        for key, end in (("complete", Complete("1")), ("bury", Bury(FAILURE)), ("withdraw", Withdraw("no"))):
            id = await harness.ended(end, unique_key=key)
            assert await harness.enqueue(unique_key=key) != id, key

    async def test_a_unique_key_is_free_after_a_cancel(self, harness: Harness) -> None:
        id = await harness.enqueue(unique_key="u")
        await harness.store.cancel([id], "no")
        assert await harness.enqueue(unique_key="u") != id

    async def test_a_finished_job_is_returned_within_the_window_of_its_enqueue(self, harness: Harness) -> None:
        id = await harness.enqueue(unique_key="u", unique_window=2 * HOUR)
        harness.clock.advance(HOUR)
        [claimed] = await harness.claim()
        await harness.settle(claimed, Complete())
        harness.clock.advance(HOUR - SECOND)
        assert await harness.enqueue(unique_key="u") == id
        harness.clock.advance(2 * SECOND)
        assert await harness.enqueue(unique_key="u") != id

    async def test_the_window_does_not_end_an_unfinished_job_s_key(self, harness: Harness) -> None:
        id = await harness.enqueue(unique_key="u", unique_window=SECOND)
        harness.clock.advance(HOUR)
        assert await harness.enqueue(unique_key="u") == id

    async def test_each_task_has_its_own_unique_keys(self, harness: Harness) -> None:
        assert await harness.enqueue(task="one", unique_key="u") != await harness.enqueue(task="two", unique_key="u")

    async def test_equal_unique_keys_in_one_batch_are_one_job(self, harness: Harness) -> None:
        jobs = [harness.new({"n": n}, unique_key="u") for n in range(3)]
        answers = await harness.store.enqueue(jobs)
        assert answers == [Enqueued(jobs[0].id), *[Enqueued(jobs[0].id, is_existing=True)] * 2]

    async def test_racing_enqueues_of_one_unique_key_make_one_job(self, harness: Harness) -> None:
        stores = harness.pair()
        calls = [stores[n % 2].enqueue([harness.new({"n": n}, unique_key="u")]) for n in range(100)]
        answers = [answer for [answer] in await asyncio.gather(*calls)]
        assert len({answer.id for answer in answers}) == 1
        assert sum(not answer.is_existing for answer in answers) == 1

    async def test_the_idempotency_key_is_looked_up_before_the_unique_key(self, harness: Harness) -> None:
        by_key = await harness.enqueue({"a": 1}, idempotency_key="k")
        by_unique = await harness.enqueue({"a": 1}, unique_key="u")
        assert await harness.enqueue({"a": 1}, idempotency_key="k", unique_key="u") == by_key
        with pytest.raises(IdempotencyConflict):
            await harness.enqueue({"a": 2}, idempotency_key="k", unique_key="u")
        assert await harness.state(by_unique) is JobState.PENDING
