"""Settle: only the holder of the claim may say what came of a job, and says it once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

from holdfast import lifecycle
from holdfast.job import Attempt, Failure, FailureKind, JobState, Lane, Stage
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition, Withdraw
from holdfast.store import Settled, Settlement
from holdfast.testing.store_contract.harness import FAILURE, Harness, placeless

MINUTE = timedelta(minutes=1)

EVERY_TRANSITION: tuple[Transition, ...] = (
    Complete(),
    Complete('{"receipt": "é 1"}'),
    GiveBack(),
    GiveBack(MINUTE),
    GiveBack(is_charged=True, failure=FAILURE),
    GiveBack(MINUTE, is_charged=True, failure=FAILURE),
    GiveBack(MINUTE, failure=Failure(FailureKind.ERROR, "Snooze", "not yet"), has_waited=True),
    GiveBack(timedelta(seconds=5), is_charged=True, failure=FAILURE, met_full_pool=True),
    GiveBack(failure=Failure(FailureKind.CRASH, "Crash", "gone"), has_crashed=True),
    Bury(FAILURE),
    Bury(Failure(FailureKind.CRASH, "Segfault", "gone"), has_crashed=True),
    Withdraw(),
    Withdraw("not wanted"),
)


class SettleContract:
    async def test_every_transition_leaves_the_record_that_the_lifecycle_says(self, harness: Harness) -> None:
        for transition in EVERY_TRANSITION:
            harness.clock.advance(1.000001)
            claimed = await harness.start(tags=("x",), context_json='{"c":1}', expires_in=timedelta(days=1))
            before = await harness.record(claimed.id)
            harness.clock.advance(2.5)
            assert await harness.settle(claimed, transition) is Settled.APPLIED
            after = await harness.record(claimed.id)
            assert placeless(after) == placeless(lifecycle.finish(before, transition, harness.clock.now())), transition
            expected = lifecycle.ended_attempt(before, transition, harness.clock.now())
            assert await harness.store.attempts(claimed.id) == lifecycle.all_attempts(
                after, [expected] if expected else []
            )
            await harness.check_counters()

    async def test_a_completed_job_keeps_its_result_its_worker_and_its_token(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        started = harness.clock.now()
        harness.clock.advance(3)
        await harness.settle(claimed, Complete('{"n":1}'))
        record = await harness.record(claimed.id)
        assert (record.state, record.result_json, record.attempt, record.runs) == (JobState.COMPLETED, '{"n":1}', 1, 1)
        assert (record.worker, record.token) == (worker, claimed.token)
        assert (record.started_at, record.finished_at) == (started, harness.clock.now())
        [attempt] = await harness.store.attempts(claimed.id)
        assert attempt == Attempt(1, 0, started, harness.clock.now(), worker)

    async def test_a_failed_attempt_can_be_read_afterwards(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        started = harness.clock.now()
        harness.clock.advance(3)
        await harness.settle(claimed, GiveBack(MINUTE, is_charged=True, failure=FAILURE))
        assert await harness.store.attempts(claimed.id) == [
            Attempt(1, 0, started, harness.clock.now(), worker, FAILURE)
        ]
        record = await harness.record(claimed.id)
        assert (record.state, record.attempt) == (JobState.RETRYING, 1)
        assert (record.error_type, record.error_message) == (FAILURE.error_type, FAILURE.message)
        assert record.due_at == harness.clock.now() + MINUTE

    async def test_success_after_a_failure_clears_the_error_and_keeps_the_history(self, harness: Harness) -> None:
        id = await harness.enqueue()
        worker = await harness.worker()
        for transition in (GiveBack(is_charged=True, failure=FAILURE), Complete("1")):
            [claimed] = await harness.claim(worker)
            harness.clock.advance(1)
            await harness.settle(claimed, transition)
        record = await harness.record(id)
        assert (record.state, record.error_type, record.error_message) == (JobState.COMPLETED, None, None)
        assert [(attempt.run, attempt.failure) for attempt in await harness.store.attempts(id)] == [
            (1, FAILURE),
            (2, None),
        ]

    async def test_a_release_hands_the_attempt_back(self, harness: Harness) -> None:
        claimed = await harness.start()
        await harness.settle(claimed, GiveBack())
        record = await harness.record(claimed.id)
        assert (record.state, record.stage, record.lane) == (JobState.PENDING, Stage.READY, Lane.GIVEN_BACK)
        assert (record.attempt, record.runs) == (0, 1)
        assert await harness.store.attempts(claimed.id) == []

    async def test_a_snooze_is_neither_charged_nor_a_failed_attempt(self, harness: Harness) -> None:
        claimed = await harness.start()
        failure = Failure(FailureKind.ERROR, "Snooze", "not yet")
        await harness.settle(claimed, GiveBack(MINUTE, failure=failure, has_waited=True))
        record = await harness.record(claimed.id)
        assert (record.state, record.attempt, record.waits) == (JobState.PENDING, 0, 1)
        assert await harness.store.attempts(claimed.id) == []

    async def test_a_dead_letter_keeps_everything(self, harness: Harness) -> None:
        failure = Failure(FailureKind.TIMEOUT, 'it\'s "quoted"', "two\nlines 👩‍👩‍👧", "Traceback\n" * 500)
        claimed = await harness.start(args={"order": 1}, tags=("vip",))
        await harness.settle(claimed, Bury(failure))
        record = await harness.record(claimed.id)
        assert (record.state, record.args, record.tags) == (JobState.DEAD, {"order": 1}, ("vip",))
        assert (record.error_type, record.error_message) == (failure.error_type, failure.message)
        assert record.finished_at == harness.clock.now()
        [attempt] = await harness.store.attempts(claimed.id)
        assert attempt.failure == failure

    async def test_every_kind_of_failure_is_kept(self, harness: Harness) -> None:
        for kind in FailureKind:
            for traceback in (None, "", "text"):
                failure = Failure(kind, "Error", "", traceback)
                [attempt] = await harness.store.attempts(await harness.ended(Bury(failure)))
                assert attempt.failure == failure

    async def test_answers_stand_in_the_order_of_the_settlements(self, harness: Harness) -> None:
        good, repeated, stale = [await harness.start() for _ in range(3)]
        await harness.settle(repeated, Complete("1"))
        before = await harness.record(stale.id)
        answers = await harness.store.settle(
            [
                Settlement(stale.id, uuid4(), Complete()),
                Settlement(good.id, good.token, Complete("2")),
                Settlement(uuid4(), good.token, Complete()),
                Settlement(repeated.id, repeated.token, Complete("1")),
            ]
        )
        assert answers == [Settled.STALE, Settled.APPLIED, Settled.STALE, Settled.ALREADY]
        assert (await harness.record(good.id)).result_json == "2"
        assert await harness.record(stale.id) == before

    async def test_what_is_not_completed_is_answered_at_its_place_too(self, harness: Harness) -> None:
        first, second, third, failed, stale = [await harness.start() for _ in range(5)]
        answers = await harness.store.settle(
            [
                Settlement(first.id, first.token, Complete("1")),
                Settlement(stale.id, uuid4(), GiveBack()),
                Settlement(second.id, second.token, Complete("2")),
                Settlement(failed.id, failed.token, Bury(FAILURE)),
                Settlement(third.id, third.token, Complete("3")),
            ]
        )
        assert answers == [Settled.APPLIED, Settled.STALE, *[Settled.APPLIED] * 3]
        after = await harness.store.get([job.id for job in (first, stale, second, failed, third)])
        states = [record.state for record in after]
        assert states == [
            JobState.COMPLETED,
            JobState.ACTIVE,
            JobState.COMPLETED,
            JobState.DEAD,
            JobState.COMPLETED,
        ]

    async def test_of_two_endings_of_one_job_in_one_batch_the_first_counts(self, harness: Harness) -> None:
        for ways in ((Complete("1"), Bury(FAILURE)), (Bury(FAILURE), Complete("1"))):
            other, claimed = [await harness.start() for _ in range(2)]
            answers = await harness.store.settle(
                [
                    Settlement(other.id, other.token, Complete()),
                    *(Settlement(claimed.id, claimed.token, way) for way in ways),
                ]
            )
            assert answers == [Settled.APPLIED, Settled.APPLIED, Settled.ALREADY]
            is_completed = isinstance(ways[0], Complete)
            expected = JobState.COMPLETED if is_completed else JobState.DEAD
            assert (await harness.record(claimed.id)).state is expected

    async def test_a_batch_may_mix_every_transition(self, harness: Harness) -> None:
        claimed = [await harness.start(unique_key=str(n)) for n in range(len(EVERY_TRANSITION))]
        before = await harness.store.get([job.id for job in claimed])
        pairs = list(zip(claimed, EVERY_TRANSITION, strict=True))
        answers = await harness.store.settle([Settlement(job.id, job.token, what) for job, what in pairs])
        assert answers == [Settled.APPLIED] * len(pairs)
        after = await harness.store.get([job.id for job in claimed])
        expected = [
            lifecycle.finish(record, what, harness.clock.now())
            for record, what in zip(before, EVERY_TRANSITION, strict=True)
        ]
        assert [placeless(record) for record in after] == [placeless(record) for record in expected]
        await harness.check_counters()

    async def test_one_job_settled_twice_in_one_batch_is_settled_once(self, harness: Harness) -> None:
        claimed = await harness.start()
        answers = await harness.store.settle([Settlement(claimed.id, claimed.token, Complete("1"))] * 2)
        assert answers == [Settled.APPLIED, Settled.ALREADY]

    async def test_jobs_given_back_in_one_batch_keep_its_order(self, harness: Harness) -> None:
        await harness.enqueue_many(5)
        worker = await harness.worker()
        claimed = await harness.claim(worker, 5)
        order = [claimed[n] for n in (3, 0, 4, 1, 2)]
        await harness.store.settle([Settlement(job.id, job.token, GiveBack()) for job in order])
        assert [job.id for job in await harness.claim(worker, 5)] == [job.id for job in order]

    async def test_nothing_to_settle_is_nothing_to_do(self, harness: Harness) -> None:
        assert await harness.store.settle([]) == []

    async def test_jobs_without_a_key_need_no_look_up(self, harness: Harness) -> None:
        for transition in EVERY_TRANSITION:
            claimed = await harness.start()
            before = await harness.record(claimed.id)
            settlement = Settlement(claimed.id, claimed.token, transition, is_keyed=False)
            assert await harness.store.settle([settlement]) == [Settled.APPLIED]
            after = await harness.record(claimed.id)
            assert placeless(after) == placeless(lifecycle.finish(before, transition, harness.clock.now()))

    async def test_a_large_batch_is_settled_whole(self, harness: Harness) -> None:
        await harness.enqueue_many(2_500)
        claimed = await harness.claim(demand=2_500)
        answers = await harness.store.settle([Settlement(job.id, job.token, Complete("1")) for job in claimed])
        assert answers == [Settled.APPLIED] * 2_500
        assert len(await harness.store.finished([job.id for job in claimed][:1000])) == 1000

    # ── the fence ────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_stale_settlement_changes_nothing(self, harness: Harness) -> None:
        for transition in EVERY_TRANSITION:
            claimed = await harness.start(idempotency_key=str(uuid4()))
            harness.clock.advance(5)
            before = await harness.snapshot([claimed.id])
            [answer] = await harness.store.settle([Settlement(claimed.id, uuid4(), transition)])
            assert answer is Settled.STALE, transition
            assert await harness.snapshot([claimed.id]) == before, transition

    async def test_a_job_that_never_ran_cannot_be_settled(self, harness: Harness) -> None:
        for id in (await harness.enqueue(), await harness.enqueue(delay=MINUTE)):
            before = await harness.snapshot([id])
            assert await harness.store.settle([Settlement(id, uuid4(), Complete())]) == [Settled.STALE]
            assert await harness.snapshot([id]) == before

    async def test_a_job_that_is_not_there_is_stale(self, harness: Harness) -> None:
        claimed = await harness.start()
        [answer] = await harness.store.settle([Settlement(uuid4(), claimed.token, Complete())])
        assert answer is Settled.STALE

    async def test_a_job_s_token_opens_no_other_job(self, harness: Harness) -> None:
        one, other = await harness.start(), await harness.start()
        before = await harness.snapshot([one.id, other.id])
        answers = await harness.store.settle(
            [Settlement(one.id, other.token, Complete()), Settlement(other.id, one.token, Complete())]
        )
        assert answers == [Settled.STALE, Settled.STALE]
        assert await harness.snapshot([one.id, other.id]) == before

    async def test_a_repeated_settlement_is_recognised_and_changes_nothing(self, harness: Harness) -> None:
        for transition in EVERY_TRANSITION:
            claimed = await harness.start()
            await harness.settle(claimed, transition)
            harness.clock.advance(5)
            before = await harness.snapshot([claimed.id])
            assert await harness.settle(claimed, transition) is Settled.ALREADY, transition
            assert await harness.settle(claimed, transition) is Settled.ALREADY, transition
            assert await harness.snapshot([claimed.id]) == before, transition

    async def test_a_repeated_settlement_is_recognised_after_the_job_has_ripened(self, harness: Harness) -> None:
        claimed = await harness.start()
        again = GiveBack(MINUTE, is_charged=True, failure=FAILURE)
        await harness.settle(claimed, again)
        await harness.pass_time(MINUTE)
        assert (await harness.record(claimed.id)).stage is Stage.READY
        assert await harness.settle(claimed, again) is Settled.ALREADY

    async def test_an_earlier_claim_is_stale_once_the_job_is_claimed_again(self, harness: Harness) -> None:
        for transition in EVERY_TRANSITION:
            worker = await harness.worker()
            first = await harness.start(worker)
            await harness.settle(first, GiveBack())
            [second] = await harness.claim(worker, queue=first.queue)
            before = await harness.snapshot([first.id])
            assert await harness.settle(first, transition) is Settled.STALE, transition
            assert await harness.snapshot([first.id]) == before
            assert await harness.settle(second, Complete("2")) is Settled.APPLIED
            before = await harness.snapshot([first.id])
            assert await harness.settle(first, transition) is Settled.STALE, transition
            assert await harness.snapshot([first.id]) == before

    async def test_a_claim_is_stale_after_a_person_s_retry(self, harness: Harness) -> None:
        claimed = await harness.start()
        await harness.settle(claimed, Bury(FAILURE))
        await harness.store.retry([claimed.id])
        before = await harness.snapshot([claimed.id])
        for transition in (Complete("1"), Bury(FAILURE)):
            assert await harness.settle(claimed, transition) is Settled.STALE
        assert await harness.snapshot([claimed.id]) == before

    async def test_racing_settlements_of_one_claim_apply_once(self, harness: Harness) -> None:
        stores = harness.pair()
        for _ in range(5):
            claimed = await harness.start()
            settlement = Settlement(claimed.id, claimed.token, Bury(FAILURE))
            answers = await asyncio.gather(*(stores[n % 2].settle([settlement]) for n in range(10)))
            flat = [answer for [answer] in answers]
            assert flat.count(Settled.APPLIED) == 1
            assert flat.count(Settled.ALREADY) == 9
            assert len(await harness.store.attempts(claimed.id)) == 1

    # ── a job whose cancellation was asked for ───────────────────────────────────────────────────────────────────

    async def test_a_job_that_completes_although_it_was_to_be_cancelled_stays_completed(self, harness: Harness) -> None:
        claimed = await harness.start()
        await harness.store.cancel([claimed.id], "too late")
        assert await harness.settle(claimed, Complete("1")) is Settled.APPLIED
        record = await harness.record(claimed.id)
        assert (record.state, record.result_json) == (JobState.COMPLETED, "1")

    async def test_a_job_that_is_to_be_cancelled_is_not_run_again(self, harness: Harness) -> None:
        for back in EVERY_TRANSITION:
            if isinstance(back, GiveBack):
                claimed = await harness.start(unique_key="u")
                await harness.store.cancel([claimed.id], "not wanted")
                assert await harness.settle(claimed, back) is Settled.APPLIED
                record = await harness.record(claimed.id)
                assert (record.state, record.cancel_reason) == (JobState.CANCELLED, "not wanted"), back
                assert record.finished_at == harness.clock.now()
                assert await harness.claim(queue=claimed.queue) == []
        await harness.check_counters()

    async def test_a_task_s_own_reason_for_stopping_is_kept(self, harness: Harness) -> None:
        claimed = await harness.start()
        await harness.store.cancel([claimed.id], "asked for")
        await harness.settle(claimed, Withdraw("stopped at step 3"))
        record = await harness.record(claimed.id)
        assert (record.state, record.cancel_reason) == (JobState.CANCELLED, "stopped at step 3")
