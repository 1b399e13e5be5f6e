"""Prune: what is over goes when its time has come; what anybody may still need stays."""

from __future__ import annotations

from datetime import timedelta

from holdfast.job import JobState
from holdfast.lifecycle import GiveBack
from holdfast.store import WORKER_RETENTION, Enqueued, Filter, Pruned
from holdfast.testing.store_contract.harness import FAILURE, SECOND, Harness

NOTHING = Pruned(0, 0, 0, is_done=True)
LONG = timedelta(days=1000)


class PruneContract:
    async def test_completed_jobs_go_after_their_retention(self, harness: Harness) -> None:
        id = await harness.completed()
        harness.clock.advance(harness.retention.completed - SECOND)
        assert (await harness.store.prune()).jobs == 0
        assert await harness.exists(id)
        harness.clock.advance(2 * SECOND)
        assert (await harness.store.prune()).jobs == 1
        assert not await harness.exists(id)
        assert await harness.store.attempts(id) == []

    async def test_cancelled_jobs_go_after_a_retention_of_their_own(self, harness: Harness) -> None:
        waiting = await harness.enqueue()
        await harness.store.cancel([waiting], "no")
        ids = [waiting, await harness.cancelled()]
        harness.clock.advance(harness.retention.cancelled - SECOND)
        assert (await harness.store.prune()).jobs == 0
        harness.clock.advance(2 * SECOND)
        assert (await harness.store.prune()).jobs == 2
        assert await harness.store.get(ids) == []

    async def test_the_retention_is_counted_from_the_end_and_not_from_the_enqueue(self, harness: Harness) -> None:
        claimed = await harness.start()
        harness.clock.advance(LONG)
        await harness.settle(claimed, GiveBack())
        [claimed] = await harness.claim(queue=claimed.queue)
        await harness.store.cancel([claimed.id], "no")
        await harness.settle(claimed, GiveBack())
        assert (await harness.store.prune()).jobs == 0

    async def test_dead_letters_stay_for_ever(self, harness: Harness) -> None:
        id = await harness.dead(idempotency_key="k")
        harness.clock.advance(LONG)
        await harness.store.prune()
        assert await harness.state(id) is JobState.DEAD
        assert len(await harness.store.attempts(id)) == 1

    async def test_dead_letters_go_when_a_time_is_given_for_them(self, harness: Harness) -> None:
        old = await harness.dead()
        harness.clock.advance("1h")
        between = harness.clock.now()
        harness.clock.advance("1h")
        new = await harness.dead()
        assert (await harness.store.prune(dead_before=between)).jobs == 1
        assert (await harness.exists(old), await harness.exists(new)) == (False, True)
        assert await harness.store.attempts(old) == []
        assert len(await harness.store.attempts(new)) == 1

    async def test_unfinished_jobs_never_go(self, harness: Harness) -> None:
        ids = [
            await harness.enqueue(),
            await harness.enqueue(delay=2 * LONG),
            (await harness.start()).id,
            await harness.ended(GiveBack(2 * LONG, is_charged=True, failure=FAILURE)),
        ]
        harness.clock.advance(LONG)
        assert (await harness.store.prune(dead_before=harness.clock.now())).jobs == 0
        assert len(await harness.store.get(ids)) == 4
        await harness.check_counters()

    async def test_nothing_to_prune_is_done_at_once(self, harness: Harness) -> None:
        assert await harness.store.prune() == NOTHING
        await harness.in_every_state()
        assert await harness.store.prune() == NOTHING

    async def test_a_second_prune_finds_nothing(self, harness: Harness) -> None:
        for _ in range(3):
            await harness.completed(idempotency_key=str(harness.ids.make()))
        harness.clock.advance(LONG)
        pruned = await harness.store.prune()
        assert (pruned.jobs, pruned.keys, pruned.is_done) == (3, 3, True)
        assert await harness.store.prune() == NOTHING

    async def test_a_retried_dead_letter_is_not_pruned_as_one(self, harness: Harness) -> None:
        id = await harness.dead()
        await harness.store.retry([id])
        harness.clock.advance(LONG)
        await harness.store.prune(dead_before=harness.clock.now())
        assert await harness.state(id) is JobState.PENDING

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_job_stays_as_long_as_its_idempotency_key(self, harness: Harness) -> None:
        """The answer to a repeated request is the job's result, so it must still be there."""
        id = await harness.completed(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency - SECOND)
        assert (await harness.store.prune()).jobs == 0
        assert await harness.store.enqueue([harness.new(idempotency_key="k")]) == [Enqueued(id, is_existing=True)]
        assert (await harness.record(id)).result_json == '"done"'
        harness.clock.advance(2 * SECOND)
        pruned = await harness.store.prune()
        assert (pruned.jobs, pruned.keys) == (1, 1)
        assert not await harness.exists(id)

    async def test_a_job_stays_as_long_as_its_unique_window(self, harness: Harness) -> None:
        id = await harness.completed(unique_key="u", unique_window=timedelta(hours=10))
        harness.clock.advance(timedelta(hours=10) - SECOND)
        await harness.store.prune()
        assert await harness.enqueue(unique_key="u") == id
        assert await harness.exists(id)
        harness.clock.advance(2 * SECOND)
        await harness.store.prune()
        assert not await harness.exists(id)

    async def test_a_dead_letter_with_a_live_key_is_not_pruned(self, harness: Harness) -> None:
        id = await harness.dead(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency - SECOND)
        assert (await harness.store.prune(dead_before=harness.clock.now())).jobs == 0
        assert await harness.exists(id)

    async def test_a_job_whose_key_has_passed_on_goes_like_any_other(self, harness: Harness) -> None:
        old = await harness.completed(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency + SECOND)
        new = await harness.enqueue(idempotency_key="k")
        await harness.store.prune()
        assert (await harness.exists(old), await harness.exists(new)) == (False, True)
        assert await harness.enqueue(idempotency_key="k") == new

    async def test_the_keys_of_unfinished_jobs_never_go(self, harness: Harness) -> None:
        id = await harness.enqueue(idempotency_key="k", unique_key="u", unique_window=SECOND)
        harness.clock.advance(LONG)
        assert (await harness.store.prune()).keys == 0
        assert await harness.enqueue(idempotency_key="k") == id
        assert await harness.enqueue(unique_key="u") == id

    async def test_expired_keys_of_jobs_that_stay_go(self, harness: Harness) -> None:
        await harness.dead(idempotency_key="k", unique_key="u")
        harness.clock.advance(harness.retention.idempotency + SECOND)
        assert await harness.store.prune() == Pruned(0, 2, 0, is_done=True)

    # ── batches, workers ─────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_prune_takes_about_a_batch_and_says_when_it_is_done(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(25)
        await harness.store.cancel(ids, "no")
        harness.clock.advance(LONG)
        removed = 0
        for _ in range(10):
            pruned = await harness.store.prune(batch=10)
            assert pruned.jobs <= 20
            removed += pruned.jobs
            left = await harness.store.count(Filter())
            assert left == 25 - removed
            if pruned.is_done:
                break
            assert pruned.jobs > 0
        assert removed == 25

    async def test_a_prune_of_keys_goes_on_until_it_is_done(self, harness: Harness) -> None:
        jobs = [harness.new(unique_key=str(n)) for n in range(25)]
        await harness.store.enqueue(jobs)
        await harness.store.cancel([job.id for job in jobs], "no")
        harness.clock.advance(1)
        keys = 0
        for _ in range(10):
            pruned = await harness.store.prune(batch=10)
            keys += pruned.keys
            if pruned.is_done:
                break
        assert keys == 25

    async def test_long_dead_workers_go_and_living_ones_stay(self, harness: Harness) -> None:
        dead, alive = await harness.worker("dead"), await harness.worker("alive")
        await harness.store.bury_worker(dead)
        harness.clock.advance(WORKER_RETENTION - SECOND)
        assert (await harness.store.prune()).workers == 0
        assert {worker.id for worker in await harness.store.workers()} == {dead, alive}
        harness.clock.advance(2 * SECOND)
        assert (await harness.store.prune()).workers == 1
        assert {worker.id for worker in await harness.store.workers()} == {alive}
