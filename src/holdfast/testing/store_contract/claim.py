"""Claim: each ready job goes to one claimer, the most important first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast import lifecycle
from holdfast.errors import WorkerDeclaredDead
from holdfast.job import ClaimedJob, JobState, Stage
from holdfast.lifecycle import Complete, GiveBack
from holdfast.moment import to_microseconds
from holdfast.store import Filter, Settled, Settlement, Store
from holdfast.testing.store_contract.harness import FAILURE, Harness, ids_of, placeless

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class ClaimContract:
    async def test_a_claimed_job_runs_under_its_claimer_s_token(self, harness: Harness) -> None:
        id = await harness.enqueue({"a": 1})
        before = await harness.record(id)
        harness.clock.advance(7.000001)
        worker, token = await harness.worker(), uuid4()
        [claimed] = await harness.store.claim(worker, token, {"default": 1})
        assert claimed.token == token
        after = await harness.record(id)
        assert placeless(after) == placeless(lifecycle.start(before, worker, token, harness.clock.now()))
        assert (after.state, after.attempt, after.runs) == (JobState.ACTIVE, 1, 1)

    async def test_a_claim_tells_all_that_execution_needs(self, harness: Harness) -> None:
        id = await harness.enqueue(
            {"a": 1}, task="t", priority=7, max_attempts=9, idempotency_key="k", tags=("x",), context_json='{"c":1}'
        )
        [claimed] = await harness.claim()
        record = await harness.record(id)
        assert record.token is not None
        assert claimed == ClaimedJob(
            id=id,
            token=record.token,
            task="t",
            queue="default",
            priority=7,
            args_json='{"a":1}',
            attempt=1,
            max_attempts=9,
            runs=1,
            crashes=0,
            waits=0,
            pool_tries=0,
            edits=0,
            delivery=record.delivery,
            created_microseconds=to_microseconds(record.created_at),
            due_microseconds=to_microseconds(record.due_at),
            idempotency_key="k",
            has_unique_key=False,
            context_json='{"c":1}',
        )
        assert (claimed.created_at, claimed.due_at) == (record.created_at, record.due_at)

    async def test_a_claim_says_whether_the_job_has_a_key(self, harness: Harness) -> None:
        await harness.store.enqueue([harness.new(), harness.new(unique_key="u"), harness.new(idempotency_key="k")])
        assert [claimed.is_keyed for claimed in await harness.claim(demand=3)] == [False, True, True]

    async def test_a_later_claim_tells_what_happened_before(self, harness: Harness) -> None:
        id = await harness.enqueue()
        worker = await harness.worker()
        for back in (
            GiveBack(is_charged=True, failure=FAILURE),
            GiveBack(has_waited=True, failure=FAILURE),
            GiveBack(is_charged=True, failure=FAILURE, met_full_pool=True),
            GiveBack(failure=FAILURE, has_crashed=True),
        ):
            [claimed] = await harness.claim(worker)
            await harness.settle(claimed, back)
        [claimed] = await harness.claim(worker)
        told = (claimed.attempt, claimed.runs, claimed.waits, claimed.pool_tries, claimed.crashes)
        assert (claimed.id, *told) == (id, 3, 5, 1, 1, 1)

    async def test_all_jobs_of_one_claim_carry_its_token(self, harness: Harness) -> None:
        await harness.enqueue_many(5)
        token = uuid4()
        claimed = await harness.store.claim(await harness.worker(), token, {"default": 5})
        assert [job.token for job in claimed] == [token] * 5
        assert {job.token for job in await harness.store.get(ids_of(claimed))} == {token}

    # ── order ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_more_important_goes_first(self, harness: Harness) -> None:
        ids = {priority: await harness.enqueue(priority=priority) for priority in (5, 0, 9, 2, 8)}
        assert ids_of(await harness.claim(demand=5)) == [ids[priority] for priority in (9, 8, 5, 2, 0)]

    async def test_equal_priorities_go_in_the_order_of_becoming_ready(self, harness: Harness) -> None:
        later = await harness.enqueue(delay=MINUTE)
        first = await harness.enqueue()
        second = await harness.enqueue()
        await harness.pass_time(MINUTE)
        third = await harness.enqueue()
        assert ids_of(await harness.claim(demand=9)) == [first, second, later, third]

    async def test_given_back_goes_before_fresh_within_its_priority(self, harness: Harness) -> None:
        low, high = await harness.enqueue(priority=2), await harness.enqueue(priority=8)
        worker = await harness.worker()
        claimed = await harness.claim(worker, 2)
        fresh_low, fresh_high = await harness.enqueue(priority=2), await harness.enqueue(priority=8)
        for job in claimed:
            await harness.settle(job, GiveBack())
        assert ids_of(await harness.claim(worker, 4)) == [high, fresh_high, low, fresh_low]

    async def test_what_was_given_back_goes_in_the_order_of_giving_back(self, harness: Harness) -> None:
        first, second, third = await harness.enqueue_many(3)
        worker = await harness.worker()
        claimed = {job.id: job for job in await harness.claim(worker, 3)}
        for id in (third, first, second):
            await harness.settle(claimed[id], GiveBack(is_charged=True, failure=FAILURE))
        assert ids_of(await harness.claim(worker, 3)) == [third, first, second]

    async def test_a_delayed_retry_queues_up_behind_those_that_are_ready(self, harness: Harness) -> None:
        failed = await harness.start(queue="default")
        await harness.settle(failed, GiveBack(MINUTE, is_charged=True, failure=FAILURE))
        ready = await harness.enqueue()
        await harness.pass_time(MINUTE)
        assert ids_of(await harness.claim(demand=2)) == [ready, failed.id]

    async def test_a_person_s_retry_queues_up_behind_those_that_are_ready(self, harness: Harness) -> None:
        dead = await harness.dead(queue="default")
        ready = await harness.enqueue()
        await harness.store.retry([dead])
        assert ids_of(await harness.claim(demand=2)) == [ready, dead]

    async def test_run_now_queues_up_behind_those_that_are_ready(self, harness: Harness) -> None:
        scheduled = await harness.enqueue(delay=HOUR)
        ready = await harness.enqueue()
        await harness.store.run_now([scheduled])
        last = await harness.enqueue()
        assert ids_of(await harness.claim(demand=3)) == [ready, scheduled, last]

    async def test_claims_one_by_one_keep_the_order(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(30)
        worker = await harness.worker()
        claimed = [job for n in (1, 7, 2, 20, 5) for job in await harness.claim(worker, n)]
        assert ids_of(claimed) == ids

    # ── demand ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_no_queue_gives_more_than_is_asked_of_it(self, harness: Harness) -> None:
        for queue in ("a", "b", "c"):
            await harness.enqueue_many(3, queue=queue)
        claimed = await harness.claim(demand={"a": 2, "b": 5, "never": 4})
        assert sorted(job.queue for job in claimed) == ["a", "a", "b", "b", "b"]
        left = {queue.name: queue.waiting for queue in await harness.store.queues()}
        assert (left["a"], left["b"], left["c"]) == (1, 0, 3)

    async def test_important_work_of_another_queue_does_not_use_up_the_demand(self, harness: Harness) -> None:
        await harness.enqueue_many(5, queue="high", priority=9)
        low = await harness.enqueue(queue="low", priority=0)
        claimed = await harness.claim(demand={"high": 2, "low": 1})
        assert [job.queue for job in claimed].count("high") == 2
        assert low in ids_of(claimed)

    async def test_no_demand_claims_nothing(self, harness: Harness) -> None:
        await harness.enqueue()
        worker = await harness.worker()
        assert await harness.claim(worker, {}) == []
        assert await harness.claim(worker, {"default": 0}) == []
        assert (await harness.queue()).waiting == 1

    async def test_an_empty_queue_gives_nothing(self, harness: Harness) -> None:
        assert await harness.claim(demand={"default": 10}) == []

    async def test_a_large_demand_takes_all_there_is(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(2_500)
        assert ids_of(await harness.claim(demand=5_000)) == ids

    # ── what is passed over ──────────────────────────────────────────────────────────────────────────────────────

    async def test_only_ready_jobs_are_claimed(self, harness: Harness) -> None:
        states = await harness.in_every_state()
        queues = {job.queue: 10 for job in await harness.everything()}
        assert set(ids_of(await harness.claim(demand=queues))) == {states["ready"], states["given back"]}

    async def test_a_paused_queue_gives_nothing_until_it_is_resumed(self, harness: Harness) -> None:
        held, free = await harness.enqueue(queue="held"), await harness.enqueue(queue="free")
        worker = await harness.worker()
        await harness.store.pause("held")
        assert ids_of(await harness.claim(worker, {"held": 5, "free": 5})) == [free]
        await harness.store.resume("held")
        assert ids_of(await harness.claim(worker, {"held": 5})) == [held]

    async def test_an_expired_job_is_passed_over(self, harness: Harness) -> None:
        expired = await harness.enqueue(expires_in=MINUTE)
        fit = await harness.enqueue(expires_in=HOUR)
        harness.clock.advance(MINUTE)
        assert ids_of(await harness.claim(demand=1)) == [fit]
        assert (await harness.record(expired)).attempt == 0

    async def test_a_job_is_claimed_until_just_before_it_expires(self, harness: Harness) -> None:
        id = await harness.enqueue(expires_in=MINUTE)
        harness.clock.advance(MINUTE - timedelta(microseconds=1))
        assert ids_of(await harness.claim()) == [id]

    async def test_many_expired_jobs_do_not_hide_a_fit_one(self, harness: Harness) -> None:
        await harness.enqueue_many(300, expires_in=MINUTE, priority=9)
        fit = await harness.enqueue(priority=1)
        harness.clock.advance(HOUR)
        assert ids_of(await harness.claim(demand=2)) == [fit]

    # ── who may claim ────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_worker_that_never_registered_may_not_claim(self, harness: Harness) -> None:
        id = await harness.enqueue()
        with pytest.raises(WorkerDeclaredDead):
            await harness.claim(uuid4())
        assert (await harness.record(id)).stage is Stage.READY

    async def test_a_dead_worker_may_not_claim(self, harness: Harness) -> None:
        id = await harness.enqueue()
        buried, rescued, departed = [await harness.worker() for _ in range(3)]
        await harness.store.bury_worker(buried)
        [beat] = [sighting.beat for sighting in await harness.store.sightings() if sighting.worker == rescued]
        await harness.store.rescue({rescued: beat})
        await harness.store.depart(departed)
        for worker in (buried, rescued, departed):
            with pytest.raises(WorkerDeclaredDead):
                await harness.claim(worker)
        assert (await harness.record(id)).stage is Stage.READY

    async def test_a_claim_racing_with_its_worker_s_end_loses_no_job(self, harness: Harness) -> None:
        """Whichever comes first: the claim is refused, or what it took is rescued."""
        stores = harness.pair()
        for _ in range(10):
            ids = await harness.enqueue_many(3, queue="race")
            worker = await harness.worker()
            claim = stores[0].claim(worker, uuid4(), {"race": 3})
            claimed, rescued = await asyncio.gather(claim, stores[1].bury_worker(worker), return_exceptions=True)
            assert not isinstance(rescued, BaseException), rescued
            if isinstance(claimed, BaseException):
                assert isinstance(claimed, WorkerDeclaredDead)
                assert rescued == []
            await harness.store.rescue({})
            assert all(job.stage is Stage.READY for job in await harness.store.get(ids))
            for job in await harness.claim(demand=3, queue="race"):
                await harness.settle(job, Complete())

    # ── racing claimers ──────────────────────────────────────────────────────────────────────────────────────────

    async def test_racing_claimers_never_share_a_job_and_together_get_all(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(400)
        stores = harness.pair()
        claimed = [job for part in await self._race(harness, stores) for job in part]
        assert len(claimed) == 400
        assert {job.id for job in claimed} == set(ids)
        records = {job.id: job for job in await harness.store.get(ids)}
        assert all(records[job.id].token == job.token and records[job.id].runs == 1 for job in claimed)
        answers = await harness.store.settle([Settlement(job.id, job.token, Complete()) for job in claimed])
        assert set(answers) == {Settled.APPLIED}
        await harness.check_counters()

    async def test_racing_claimers_get_all_while_producers_add(self, harness: Harness) -> None:
        stores = harness.pair()
        race = asyncio.create_task(self._race(harness, stores, 200))
        await asyncio.gather(*(stores[n % 2].enqueue([harness.new() for _ in range(10)]) for n in range(20)))
        claimed = [job.id for part in await race for job in part]
        assert len(claimed) == len(set(claimed)) == 200
        assert await harness.store.count(Filter(states=frozenset({JobState.ACTIVE}))) == 200

    async def _race(self, harness: Harness, stores: tuple[Store, Store], total: int = 400) -> list[list[ClaimedJob]]:
        """Eight claimers, each taking a few at a time, until all is taken."""
        taken: list[UUID] = []

        async def claimer(store: Store, worker: UUID) -> list[ClaimedJob]:
            mine: list[ClaimedJob] = []
            for _ in range(10 * total):
                got = await store.claim(worker, uuid4(), {"default": 7})
                mine += got
                taken.extend(ids_of(got))
                if len(taken) >= total:
                    break
                await asyncio.sleep(0)
            return mine

        workers = [await harness.worker() for _ in range(8)]
        return list(await asyncio.gather(*(claimer(stores[n % 2], worker) for n, worker in enumerate(workers))))
