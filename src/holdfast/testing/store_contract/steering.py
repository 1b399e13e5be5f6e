"""Steering: what people ask of jobs is done where the state allows it, and ruled on for every id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast import lifecycle
from holdfast.errors import InvalidOption
from holdfast.job import FailureKind, JobState, Lane, Stage
from holdfast.lifecycle import Bury, Complete, GiveBack
from holdfast.store import LARGEST_BATCH, Filter, Ruling, Settled
from holdfast.testing.store_contract.harness import FAILURE, SECOND, Harness, ids_of, placeless

HOUR = timedelta(hours=1)
Steer = Callable[[Sequence[UUID]], Awaitable[dict[UUID, Ruling]]]


async def check_rulings(harness: Harness, steer: Steer, expected: dict[str, Ruling]) -> None:
    """Ask for one job in every state and one that is not there; what is refused must not change."""
    states = await harness.in_every_state()
    missing = uuid4()
    before = {job.id: job for job in await harness.store.get(list(states.values()))}
    rulings = await steer([*states.values(), missing])
    assert rulings.pop(missing) == Ruling(is_done=False, state=None)
    names = {id: name for name, id in states.items()}
    assert {names[id]: ruling for id, ruling in rulings.items()} == expected
    for id, ruling in rulings.items():
        if not ruling.is_done:
            assert await harness.store.get([id]) == [before[id]], names[id]
    await harness.check_counters()


class CancelContract:
    async def test_cancel_rules_by_state(self, harness: Harness) -> None:
        cancelled = Ruling(is_done=True, state=JobState.CANCELLED)
        await check_rulings(
            harness,
            lambda ids: harness.store.cancel(ids, "no"),
            {
                "ready": cancelled,
                "scheduled": cancelled,
                "given back": cancelled,
                "retrying": cancelled,
                "active": Ruling(is_done=True, state=JobState.ACTIVE),
                "completed": Ruling(is_done=False, state=JobState.COMPLETED),
                "cancelled": Ruling(is_done=False, state=JobState.CANCELLED),
                "dead": Ruling(is_done=False, state=JobState.DEAD),
            },
        )

    async def test_a_cancelled_waiting_job_says_when_and_why(self, harness: Harness) -> None:
        for delay in (None, HOUR):
            id = await harness.enqueue(delay=delay)
            before = await harness.record(id)
            harness.clock.advance(3)
            await harness.store.cancel([id], 'it\'s a "duplicate"\n👩‍👩‍👧')
            expected = lifecycle.cancel(before, 'it\'s a "duplicate"\n👩‍👩‍👧', harness.clock.now())
            assert expected is not None
            assert placeless(await harness.record(id)) == placeless(expected)
        assert await harness.claim() == []

    async def test_a_running_job_stays_active_until_it_has_stopped(self, harness: Harness) -> None:
        claimed = await harness.start()
        before = await harness.record(claimed.id)
        harness.clock.advance(3)
        await harness.store.cancel([claimed.id], "no")
        after = await harness.record(claimed.id)
        assert after == lifecycle.cancel(before, "no", harness.clock.now())
        assert (after.state, after.cancel_requested_at) == (JobState.ACTIVE, harness.clock.now())

    async def test_the_first_reason_stays(self, harness: Harness) -> None:
        claimed = await harness.start()
        await harness.store.cancel([claimed.id], "first")
        before = await harness.record(claimed.id)
        harness.clock.advance(3)
        rulings = await harness.store.cancel([claimed.id], "second")
        assert rulings == {claimed.id: Ruling(is_done=True, state=JobState.ACTIVE)}
        assert await harness.record(claimed.id) == before

    async def test_a_worker_learns_which_of_its_jobs_are_asked_to_stop(self, harness: Harness) -> None:
        why = 'it\'s a "duplicate"\n👩‍👩‍👧'
        running, asked, ended = [await harness.start() for _ in range(3)]
        waiting = await harness.enqueue()
        await harness.store.cancel([waiting, ended.id], "no")
        await harness.store.cancel([asked.id], why)
        await harness.settle(ended, Complete("null"))
        for store in harness.pair():
            mine = [running.id, asked.id, ended.id, waiting, uuid4()]
            assert await store.asked_to_stop(mine) == {asked.id: why}
            assert await store.asked_to_stop([]) == {}

    async def test_of_many_jobs_all_learn_that_they_are_asked_to_stop(self, harness: Harness) -> None:
        await harness.enqueue_many(900)
        claimed = [job.id for job in await harness.claim(demand=900)]
        await harness.store.cancel(claimed[::2], "no")
        assert await harness.store.asked_to_stop(claimed) == dict.fromkeys(claimed[::2], "no")

    async def test_cancelling_twice_is_done_once(self, harness: Harness) -> None:
        id = await harness.enqueue()
        await harness.store.cancel([id], "first")
        before = await harness.record(id)
        assert await harness.store.cancel([id], "second") == {id: Ruling(is_done=False, state=JobState.CANCELLED)}
        assert await harness.record(id) == before

    async def test_a_cancelled_retry_keeps_its_history(self, harness: Harness) -> None:
        id = await harness.ended(GiveBack(HOUR, is_charged=True, failure=FAILURE))
        await harness.store.cancel([id], "no")
        assert [attempt.failure for attempt in await harness.store.attempts(id)] == [FAILURE]

    async def test_a_claim_and_a_cancel_that_race_agree(self, harness: Harness) -> None:
        stores = harness.pair()
        worker = await harness.worker()
        for _ in range(10):
            id = await harness.enqueue(queue="race")
            claimed, rulings = await asyncio.gather(
                stores[0].claim(worker, uuid4(), {"race": 1}), stores[1].cancel([id], "no")
            )
            record = await harness.record(id)
            assert rulings[id] == Ruling(is_done=True, state=record.state)
            assert record.state is (JobState.ACTIVE if claimed else JobState.CANCELLED)
            assert record.cancel_requested_at is not None


class RetryContract:
    async def test_retry_rules_by_state(self, harness: Harness) -> None:
        await check_rulings(
            harness,
            harness.store.retry,
            {
                "ready": Ruling(is_done=False, state=JobState.PENDING),
                "scheduled": Ruling(is_done=False, state=JobState.PENDING),
                "given back": Ruling(is_done=False, state=JobState.PENDING),
                "retrying": Ruling(is_done=False, state=JobState.RETRYING),
                "active": Ruling(is_done=False, state=JobState.ACTIVE),
                "completed": Ruling(is_done=False, state=JobState.COMPLETED),
                "cancelled": Ruling(is_done=True, state=JobState.PENDING),
                "dead": Ruling(is_done=True, state=JobState.PENDING),
            },
        )

    async def test_a_retried_job_has_a_fresh_budget_and_its_old_history(self, harness: Harness) -> None:
        id = await harness.dead(expires_in=HOUR, max_attempts=1)
        before, history = await harness.record(id), await harness.store.attempts(id)
        harness.clock.advance(2 * HOUR)
        await harness.store.retry([id])
        after = await harness.record(id)
        expected = lifecycle.retry(before, harness.clock.now())
        assert expected is not None
        assert placeless(after) == placeless(expected)
        assert (after.stage, after.lane, after.attempt, after.runs) == (Stage.READY, Lane.FRESH, 0, 1)
        assert (after.generation, after.edits, after.expires_at, after.token) == (1, 0, None, None)
        assert await harness.store.attempts(id) == history
        [claimed] = await harness.claim(queue=after.queue)
        assert (claimed.attempt, claimed.runs, claimed.edits) == (1, 2, 0)

    async def test_a_retried_job_can_finish_anew(self, harness: Harness) -> None:
        id = await harness.dead(queue="default")
        await harness.store.retry([id])
        [claimed] = await harness.claim()
        harness.clock.advance(1)
        assert await harness.settle(claimed, Complete("2")) is Settled.APPLIED
        record = await harness.record(id)
        assert (record.state, record.result_json, record.error_type) == (JobState.COMPLETED, "2", None)
        attempts = await harness.store.attempts(id)
        assert [(attempt.run, attempt.generation, attempt.failure) for attempt in attempts] == [
            (1, 0, FAILURE),
            (2, 1, None),
        ]

    async def test_a_job_can_be_retried_with_other_arguments(self, harness: Harness) -> None:
        id = await harness.dead(args={"order": 1}, queue="default")
        before = await harness.record(id)
        await harness.store.retry([id], '{"order": 2,  "by": "é"}')
        expected = lifecycle.retry(before, harness.clock.now(), '{"order": 2,  "by": "é"}')
        assert expected is not None
        assert placeless(await harness.record(id)) == placeless(expected)
        [claimed] = await harness.claim()
        assert (claimed.args_json, claimed.edits) == ('{"order": 2,  "by": "é"}', 1)
        assert claimed.effect_key == f"{id}:1"

    async def test_a_retry_of_a_cancelled_job_is_not_cancelled_again(self, harness: Harness) -> None:
        id = await harness.enqueue()
        await harness.store.cancel([id], "no")
        await harness.store.retry([id])
        record = await harness.record(id)
        assert (record.state, record.cancel_requested_at, record.cancel_reason) == (JobState.PENDING, None, None)
        [claimed] = await harness.claim()
        await harness.settle(claimed, GiveBack())
        assert await harness.state(id) is JobState.PENDING

    async def test_retrying_twice_starts_one_generation(self, harness: Harness) -> None:
        id = await harness.dead()
        await harness.store.retry([id])
        before = await harness.record(id)
        assert await harness.store.retry([id]) == {id: Ruling(is_done=False, state=JobState.PENDING)}
        assert await harness.record(id) == before

    async def test_racing_retries_start_one_generation(self, harness: Harness) -> None:
        stores = harness.pair()
        id = await harness.dead()
        rulings = await asyncio.gather(*(stores[n % 2].retry([id]) for n in range(8)))
        assert sum(ruling[id].is_done for ruling in rulings) == 1
        assert (await harness.record(id)).generation == 1

    async def test_retried_jobs_become_ready_in_the_order_asked_for(self, harness: Harness) -> None:
        ids = [await harness.dead(queue="default") for _ in range(5)]
        order = [ids[n] for n in (3, 0, 4, 1, 2)]
        await harness.store.retry(order)
        assert ids_of(await harness.claim(demand=5)) == order

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_retry_is_refused_when_its_idempotency_key_has_passed_on(self, harness: Harness) -> None:
        old = await harness.dead(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency + SECOND)
        new = await harness.enqueue(idempotency_key="k")
        before = await harness.record(old)
        assert await harness.store.retry([old]) == {old: Ruling(is_done=False, state=JobState.DEAD, holder=new)}
        assert await harness.record(old) == before
        # And for as long as the key is the newer job's, also once that has finished.
        [claimed] = await harness.claim()
        await harness.settle(claimed, Complete())
        assert await harness.store.retry([old]) == {old: Ruling(is_done=False, state=JobState.DEAD, holder=new)}
        harness.clock.advance(harness.retention.idempotency + SECOND)
        assert (await harness.store.retry([old]))[old].is_done
        assert await harness.enqueue(idempotency_key="k") == old

    async def test_a_refused_retry_does_not_hold_up_the_others(self, harness: Harness) -> None:
        refused = await harness.dead(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency + SECOND)
        await harness.enqueue(idempotency_key="k")
        free = await harness.dead()
        rulings = await harness.store.retry([refused, free])
        assert (rulings[refused].is_done, rulings[free].is_done) == (False, True)

    async def test_a_retry_makes_its_key_live_again(self, harness: Harness) -> None:
        id = await harness.dead(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency - SECOND)
        await harness.store.retry([id])
        harness.clock.advance(3 * harness.retention.idempotency)
        await harness.store.prune()
        assert await harness.enqueue(idempotency_key="k") == id

    async def test_a_retry_takes_back_a_key_that_has_expired(self, harness: Harness) -> None:
        for key, is_pruned in (("kept", False), ("pruned", True)):
            id = await harness.dead(args={"a": 1}, idempotency_key=key)
            harness.clock.advance(harness.retention.idempotency + SECOND)
            if is_pruned:
                await harness.store.prune()
            assert (await harness.store.retry([id]))[id].is_done
            assert await harness.enqueue({"a": 1}, idempotency_key=key) == id

    async def test_the_retention_of_a_retried_job_s_key_starts_at_its_new_end(self, harness: Harness) -> None:
        id = await harness.dead(idempotency_key="k", queue="default")
        harness.clock.advance(HOUR)
        await harness.store.retry([id])
        harness.clock.advance(harness.retention.idempotency)
        [claimed] = await harness.claim()
        await harness.settle(claimed, Complete())
        harness.clock.advance(harness.retention.idempotency - SECOND)
        assert await harness.enqueue(idempotency_key="k") == id
        harness.clock.advance(2 * SECOND)
        assert await harness.enqueue(idempotency_key="k") != id

    async def test_of_two_jobs_of_one_key_only_one_is_retried(self, harness: Harness) -> None:
        """Both are dead and their key has expired: asked for at once, they must not both run under it."""
        old = await harness.dead(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency + SECOND)
        new = await harness.dead(idempotency_key="k")
        harness.clock.advance(harness.retention.idempotency + SECOND)
        rulings = await harness.store.retry([old, new])
        assert sorted(ruling.is_done for ruling in rulings.values()) == [False, True]
        assert await harness.store.count(Filter(states=frozenset({JobState.PENDING}))) == 1

    async def test_a_retry_is_refused_while_an_equal_unique_job_is_unfinished(self, harness: Harness) -> None:
        old = await harness.dead(unique_key="u")
        new = await harness.enqueue(unique_key="u")
        assert await harness.store.retry([old]) == {old: Ruling(is_done=False, state=JobState.DEAD, holder=new)}
        [claimed] = await harness.claim()
        await harness.settle(claimed, Complete())
        assert (await harness.store.retry([old]))[old].is_done
        assert await harness.enqueue(unique_key="u") == old


class RunNowContract:
    async def test_run_now_rules_by_state(self, harness: Harness) -> None:
        await check_rulings(
            harness,
            harness.store.run_now,
            {
                "ready": Ruling(is_done=True, state=JobState.PENDING),
                "scheduled": Ruling(is_done=True, state=JobState.PENDING),
                "given back": Ruling(is_done=True, state=JobState.PENDING),
                "retrying": Ruling(is_done=True, state=JobState.RETRYING),
                "active": Ruling(is_done=False, state=JobState.ACTIVE),
                "completed": Ruling(is_done=False, state=JobState.COMPLETED),
                "cancelled": Ruling(is_done=False, state=JobState.CANCELLED),
                "dead": Ruling(is_done=False, state=JobState.DEAD),
            },
        )

    async def test_a_scheduled_job_runs_now(self, harness: Harness) -> None:
        id = await harness.enqueue(delay=HOUR, expires_in=HOUR)
        before = await harness.record(id)
        harness.clock.advance(3)
        await harness.store.run_now([id])
        expected = lifecycle.run_now(before, harness.clock.now())
        assert expected is not None
        assert placeless(await harness.record(id)) == placeless(expected)
        assert ids_of(await harness.claim()) == [id]
        assert (await harness.store.tick()).next_in is None

    async def test_a_retry_that_waits_runs_now_and_stays_charged(self, harness: Harness) -> None:
        id = await harness.ended(GiveBack(HOUR, is_charged=True, failure=FAILURE), queue="default")
        await harness.store.run_now([id])
        [claimed] = await harness.claim()
        assert (claimed.id, claimed.attempt) == (id, 2)

    async def test_a_job_that_is_ready_keeps_its_turn(self, harness: Harness) -> None:
        first, second = await harness.enqueue_many(2)
        before = await harness.record(first)
        await harness.store.run_now([first])
        assert await harness.record(first) == before
        assert ids_of(await harness.claim(demand=2)) == [first, second]


class DiscardContract:
    async def test_discard_rules_by_state(self, harness: Harness) -> None:
        names = ("ready", "scheduled", "given back", "retrying", "active", "completed", "cancelled")
        states = [JobState.PENDING] * 3 + [JobState.RETRYING, JobState.ACTIVE, JobState.COMPLETED, JobState.CANCELLED]
        refused = {name: Ruling(is_done=False, state=state) for name, state in zip(names, states, strict=True)}
        done = {"dead": Ruling(is_done=True, state=JobState.DEAD)}
        await check_rulings(harness, harness.store.discard, refused | done)

    async def test_a_discarded_dead_letter_is_gone_with_its_history(self, harness: Harness) -> None:
        id, other = await harness.dead(), await harness.dead()
        await harness.store.discard([id])
        assert await harness.store.get([id]) == []
        assert await harness.store.attempts(id) == []
        assert await harness.store.finished([id]) == []
        assert [job.id for job in await harness.everything()] == [other]
        assert len(await harness.store.attempts(other)) == 1
        assert (await harness.store.retry([id]))[id] == Ruling(is_done=False, state=None)

    async def test_expired_and_crashed_jobs_can_be_discarded_too(self, harness: Harness) -> None:
        expired = await harness.enqueue(expires_in=SECOND)
        await harness.pass_time(HOUR)
        crashed = await harness.ended(Bury(FAILURE, has_crashed=True))
        rulings = await harness.store.discard([expired, crashed])
        assert all(ruling.is_done for ruling in rulings.values())
        assert await harness.store.count(Filter()) == 0

    async def test_a_discarded_job_s_claim_is_stale(self, harness: Harness) -> None:
        claimed = await harness.start()
        await harness.settle(claimed, Bury(FAILURE))
        await harness.store.discard([claimed.id])
        assert await harness.settle(claimed, Bury(FAILURE)) is Settled.STALE
        assert await harness.store.get([claimed.id]) == []


class SteeringContract(CancelContract, RetryContract, RunNowContract, DiscardContract):
    async def test_nothing_asked_is_nothing_ruled(self, harness: Harness) -> None:
        store = harness.store
        assert await store.cancel([], "no") == await store.retry([]) == await store.run_now([]) == {}
        assert await store.discard([]) == {}

    async def test_an_id_asked_for_twice_has_one_ruling(self, harness: Harness) -> None:
        id = await harness.enqueue()
        assert set(await harness.store.cancel([id, id], "no")) == {id}
        assert await harness.state(id) is JobState.CANCELLED

    async def test_more_ids_than_the_largest_batch_are_refused(self, harness: Harness) -> None:
        dead = await harness.dead()
        ids = [dead, *(uuid4() for _ in range(LARGEST_BATCH))]
        store = harness.store
        with pytest.raises(InvalidOption):
            await store.cancel(ids, "no")
        for steer in (store.retry, store.run_now, store.discard):
            with pytest.raises(InvalidOption):
                await steer(ids)
        assert await harness.state(dead) is JobState.DEAD

    async def test_many_jobs_are_steered_at_once(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(2_000, delay=HOUR)
        assert all(ruling.is_done for ruling in (await harness.store.run_now(ids)).values())
        assert all(ruling.is_done for ruling in (await harness.store.cancel(ids, "no")).values())
        assert all(ruling.is_done for ruling in (await harness.store.retry(ids)).values())
        assert (await harness.queue()).waiting == 2_000
        await harness.check_counters()

    async def test_the_reason_of_an_expiry_is_kept_until_the_retry(self, harness: Harness) -> None:
        id = await harness.enqueue(expires_in=SECOND)
        await harness.pass_time(HOUR)
        await harness.store.retry([id])
        record = await harness.record(id)
        assert (record.error_type, record.expires_at, record.state) == (None, None, JobState.PENDING)
        [attempt] = await harness.store.attempts(id)
        assert attempt.failure is not None
        assert attempt.failure.kind is FailureKind.EXPIRED
