"""Workers: who lives is believed, who is gone is not, and no job is lost between the two."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from holdfast import lifecycle
from holdfast.errors import WorkerDeclaredDead
from holdfast.job import ClaimedJob, Delivery, FailureKind, JobRecord, JobState, Lane, Stage
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition
from holdfast.liveness import Observer
from holdfast.store import Beaten, Held, NewWorker, Settled, Settlement, WorkerRecord, crash_of
from holdfast.testing.store_contract.harness import FAILURE, Harness, ids_of, placeless

MINUTE = timedelta(minutes=1)
NOTHING = Held({})


def held(*jobs: ClaimedJob, claiming: frozenset[UUID] = frozenset()) -> Held:
    return Held({job.id: job.token for job in jobs}, claiming)


async def beat_of(harness: Harness, worker: UUID) -> int:
    [beat] = [sighting.beat for sighting in await harness.store.sightings() if sighting.worker == worker]
    return beat


async def lose(harness: Harness, worker: UUID) -> list[UUID]:
    """Rescue as after a lost machine."""
    return await harness.store.rescue({worker: await beat_of(harness, worker)})


async def check_cancelled(harness: Harness, before: JobRecord) -> None:
    """A job whose cancellation was asked for ended as cancelled when it was given back, and its history says so."""
    after = await harness.record(before.id)
    assert (after.state, after.cancel_reason) == (JobState.CANCELLED, before.cancel_reason)
    ended = lifecycle.ended_attempt(before, GiveBack(), harness.clock.now())
    assert await harness.store.attempts(before.id) == lifecycle.all_attempts(after, [ended] if ended else [])
    await harness.check_counters()


class RegisterContract:
    async def test_a_registered_worker_is_known(self, harness: Harness) -> None:
        tasks = ("charge", "it's 👩‍👩‍👧")
        worker = NewWorker(uuid4(), "it's 👩‍👩‍👧", host="höst", pid=12345, queues=("a", "b c"), tasks=tasks)
        await harness.store.register(worker)
        [record] = await harness.store.workers()
        now = harness.clock.now()
        expected = WorkerRecord(worker.id, worker.name, "höst", 12345, ("a", "b c"), now, now, record.beat, tasks=tasks)
        assert record == expected

    async def test_a_worker_that_registers_anew_has_the_tasks_that_it_says_then(self, harness: Harness) -> None:
        worker = NewWorker(uuid4(), "worker", tasks=("charge", "refund"))
        await harness.store.register(worker)
        await harness.store.register(replace(worker, tasks=("charge",)))
        assert [record.tasks for record in await harness.store.workers()] == [("charge",)]
        await harness.store.register(replace(worker, tasks=()))
        assert [record.tasks for record in await harness.store.workers()] == [()]

    async def test_a_worker_shows_how_much_it_runs(self, harness: Harness) -> None:
        busy, idle = await harness.worker(), await harness.worker()
        await harness.enqueue_many(3)
        [first, *_] = await harness.claim(busy, 3)
        await harness.settle(first, Complete())
        assert {worker.id: worker.active for worker in await harness.store.workers()} == {busy: 2, idle: 0}

    async def test_a_dead_worker_is_shown_as_dead(self, harness: Harness) -> None:
        worker = await harness.worker()
        harness.clock.advance(5)
        await harness.store.bury_worker(worker)
        [record] = await harness.store.workers()
        assert record.dead_at == harness.clock.now()
        assert await harness.store.sightings() == []

    async def test_a_worker_that_was_declared_dead_can_register_anew(self, harness: Harness) -> None:
        id = uuid4()
        await harness.store.register(NewWorker(id, "worker"))
        await harness.store.bury_worker(id)
        await harness.store.register(NewWorker(id, "worker"))
        assert (await harness.store.beat(id, NOTHING)).is_alive
        job = await harness.enqueue()
        assert ids_of(await harness.claim(id)) == [job]

    async def test_a_living_worker_s_lock_is_never_seen_free(self, harness: Harness) -> None:
        """A store need not show locks at all, but whose lock looks free is taken for dead within seconds."""
        stores, worker = harness.pair(), NewWorker(uuid4(), "worker")

        async def check() -> None:
            for store in stores:
                [sighting] = await store.sightings()
                assert (sighting.worker, sighting.is_locked is not False) == (worker.id, True)

        for _ in range(2):
            await harness.store.register(worker)
            await check()
            await harness.store.beat(worker.id, NOTHING)
            await check()
            await harness.store.bury_worker(worker.id)


class BeatContract:
    async def test_a_beat_is_seen(self, harness: Harness) -> None:
        worker = await harness.worker()
        before = await beat_of(harness, worker)
        harness.clock.advance(10)
        [sighting] = await harness.store.sightings()
        assert (sighting.worker, sighting.age) == (worker, timedelta(seconds=10))
        assert await harness.store.beat(worker, NOTHING) == Beaten(is_alive=True)
        [sighting] = await harness.store.sightings()
        assert (sighting.beat, sighting.age) == (before + 1, timedelta(0))
        [record] = await harness.store.workers()
        assert (record.beat, record.beat_at) == (before + 1, harness.clock.now())
        assert record.started_at == harness.clock.now() - timedelta(seconds=10)

    async def test_a_beat_that_agrees_changes_no_job(self, harness: Harness) -> None:
        worker = await harness.worker()
        jobs = [await harness.start(worker) for _ in range(3)]
        before = await harness.snapshot(ids_of(jobs))
        assert await harness.store.beat(worker, held(*jobs)) == Beaten(is_alive=True)
        assert await harness.snapshot(ids_of(jobs)) == before

    async def test_an_unknown_or_dead_worker_is_told_so(self, harness: Harness) -> None:
        buried, departed = await harness.worker(), await harness.worker()
        await harness.store.bury_worker(buried)
        await harness.store.depart(departed)
        for worker in (buried, departed, uuid4()):
            assert not (await harness.store.beat(worker, NOTHING)).is_alive
        assert await harness.store.sightings() == []

    async def test_a_dead_worker_s_beat_does_not_bring_it_back(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        await lose(harness, worker)
        before = await harness.snapshot([claimed.id])
        assert not (await harness.store.beat(worker, held(claimed))).is_alive
        assert await harness.snapshot([claimed.id]) == before
        with pytest.raises(WorkerDeclaredDead):
            await harness.claim(worker)

    async def test_a_claim_whose_answer_was_lost_is_given_back_uncharged(self, harness: Harness) -> None:
        worker = await harness.worker()
        harness.clock.advance(3)
        kept, lost = await harness.start(worker), await harness.start(worker)
        harness.clock.advance(3)
        await harness.store.beat(worker, held(kept))
        harness.clock.advance(3)
        assert await harness.store.beat(worker, held(kept)) == Beaten(is_alive=True, released=[lost.id])
        record = await harness.record(lost.id)
        assert (record.stage, record.lane, record.attempt) == (Stage.READY, Lane.GIVEN_BACK, 0)
        assert (record.crashes, record.due_at) == (0, harness.clock.now())
        assert await harness.store.attempts(lost.id) == []
        assert await harness.state(kept.id) is JobState.ACTIVE
        await harness.check_counters()

    async def test_a_job_that_was_claimed_after_the_last_beat_is_given_back_at_the_next_but_one(
        self, harness: Harness
    ) -> None:
        """What a worker holds is read before its beat: it may have claimed something in between."""
        worker = await harness.worker()
        for _ in range(2):  # after a registration, and after a beat
            harness.clock.advance(3)
            young = await harness.start(worker)
            before = await harness.snapshot([young.id])
            harness.clock.advance(3)
            assert await harness.store.beat(worker, NOTHING) == Beaten(is_alive=True)
            assert await harness.snapshot([young.id]) == before
            assert await harness.store.beat(worker, held(young)) == Beaten(is_alive=True)
            assert await harness.store.beat(worker, NOTHING) == Beaten(is_alive=True, released=[young.id])

    async def test_a_job_claimed_again_after_the_last_beat_is_not_given_back_for_its_earlier_claim(
        self, harness: Harness
    ) -> None:
        worker = await harness.worker()
        old = await harness.start(worker)
        harness.clock.advance(3)
        await harness.store.beat(worker, held(old))
        await harness.settle(old, GiveBack())
        harness.clock.advance(3)
        [new] = await harness.claim(worker, queue=old.queue)
        assert await harness.store.beat(worker, held(old)) == Beaten(is_alive=True, taken=[old.id])
        assert await harness.settle(new, Complete()) is Settled.APPLIED

    async def test_a_released_job_cannot_be_settled_under_its_old_token(self, harness: Harness) -> None:
        worker = await harness.worker()
        lost = await harness.start(worker)
        await harness.store.beat(worker, NOTHING)
        before = await harness.snapshot([lost.id])
        assert await harness.settle(lost, Complete()) is Settled.STALE
        assert await harness.snapshot([lost.id]) == before

    async def test_a_released_job_that_is_to_be_cancelled_ends_so(self, harness: Harness) -> None:
        worker = await harness.worker()
        lost = await harness.start(worker)
        await harness.store.cancel([lost.id], "no")
        before = await harness.record(lost.id)
        assert (await harness.store.beat(worker, NOTHING)).released == [lost.id]
        await check_cancelled(harness, before)

    async def test_a_claim_whose_answer_is_awaited_is_left_alone(self, harness: Harness) -> None:
        worker, token = await harness.worker(), uuid4()
        await harness.enqueue()
        [claimed] = await harness.store.claim(worker, token, {"default": 1})
        beaten = await harness.store.beat(worker, Held({}, claiming=frozenset({token, uuid4()})))
        assert beaten == Beaten(is_alive=True)
        assert await harness.settle(claimed, Complete()) is Settled.APPLIED

    async def test_a_claim_that_was_awaited_for_hours_is_given_back_when_nobody_awaits_it_any_more(
        self, harness: Harness
    ) -> None:
        worker, token = await harness.worker(), uuid4()
        await harness.enqueue()
        [claimed] = await harness.store.claim(worker, token, {"default": 1})
        for _ in range(3):
            harness.clock.advance("1h")
            await harness.store.beat(worker, Held({}, claiming=frozenset({token})))
        beaten = await harness.store.beat(worker, Held({}))
        assert beaten.released == [claimed.id]

    async def test_jobs_that_were_taken_away_are_named(self, harness: Harness) -> None:
        worker = await harness.worker()
        mine, settled = await harness.start(worker), await harness.start(worker)
        await harness.settle(settled, Complete())
        others = await harness.start()
        unknown = uuid4()
        jobs = {**held(mine, settled).jobs, others.id: uuid4(), unknown: uuid4()}
        beaten = await harness.store.beat(worker, Held(jobs))
        assert set(beaten.taken) == {settled.id, others.id, unknown}
        assert (beaten.is_alive, beaten.released, beaten.cancelled) == (True, [], [])
        assert await harness.state(mine.id) is JobState.ACTIVE
        assert await harness.state(others.id) is JobState.ACTIVE

    async def test_a_job_held_under_an_older_claim_of_the_same_worker_is_taken(self, harness: Harness) -> None:
        worker = await harness.worker()
        old = await harness.start(worker)
        await harness.settle(old, GiveBack())
        [new] = await harness.claim(worker, queue=old.queue)
        beaten = await harness.store.beat(worker, held(old, claiming=frozenset({new.token})))
        assert beaten == Beaten(is_alive=True, taken=[old.id])
        assert (await harness.record(new.id)).token == new.token
        beaten = await harness.store.beat(worker, held(old))
        assert (beaten.taken, beaten.released) == ([old.id], [old.id])

    async def test_jobs_to_be_cancelled_are_named_at_every_beat_until_they_have_stopped(self, harness: Harness) -> None:
        worker = await harness.worker()
        asked, other = await harness.start(worker), await harness.start(worker)
        await harness.store.cancel([asked.id], "no")
        for _ in range(2):
            assert await harness.store.beat(worker, held(asked, other)) == Beaten(is_alive=True, cancelled=[asked.id])
        await harness.settle(asked, Complete())
        assert await harness.store.beat(worker, held(other)) == Beaten(is_alive=True)

    async def test_another_worker_s_jobs_are_no_business_of_a_beat(self, harness: Harness) -> None:
        worker = await harness.worker()
        others = await harness.start()
        await harness.store.cancel([others.id], "no")
        assert await harness.store.beat(worker, NOTHING) == Beaten(is_alive=True)
        assert await harness.state(others.id) is JobState.ACTIVE

    async def test_a_worker_with_many_jobs_can_beat(self, harness: Harness) -> None:
        worker = await harness.worker()
        await harness.enqueue_many(2_000)
        jobs = await harness.claim(worker, 2_000)
        beaten = await harness.store.beat(worker, held(*jobs[:1_000]))
        assert beaten.is_alive
        assert set(beaten.released) == set(ids_of(jobs[1_000:]))
        assert (await harness.queue()).waiting == 1_000


class QuietContract:
    async def test_a_worker_is_told_to_be_quiet_at_every_beat(self, harness: Harness) -> None:
        worker, other = await harness.worker(), await harness.worker()
        claimed = await harness.start(worker)
        before = await harness.snapshot([claimed.id])
        assert await harness.store.quiet(worker) is True
        assert await harness.store.quiet(worker) is True
        for _ in range(2):
            assert await harness.store.beat(worker, held(claimed)) == Beaten(is_alive=True, is_quiet=True)
        assert await harness.store.beat(other, NOTHING) == Beaten(is_alive=True)
        assert {record.id: record.is_quiet for record in await harness.store.workers()} == {worker: True, other: False}
        assert await harness.snapshot([claimed.id]) == before

    async def test_it_lasts_until_the_worker_registers_anew(self, harness: Harness) -> None:
        worker = await harness.worker()
        await harness.store.quiet(worker)
        await harness.store.register(NewWorker(worker, "again"))
        assert await harness.store.beat(worker, NOTHING) == Beaten(is_alive=True)
        [record] = await harness.store.workers()
        assert not record.is_quiet

    async def test_only_a_living_worker_can_be_asked(self, harness: Harness) -> None:
        buried, departed = await harness.worker(), await harness.worker()
        await harness.store.bury_worker(buried)
        await harness.store.depart(departed)
        for worker in (buried, departed, uuid4()):
            assert await harness.store.quiet(worker) is False
        [record] = await harness.store.workers()
        assert (record.id, record.is_quiet) == (buried, False)


class RescueContract:
    async def test_a_worker_that_stopped_beating_is_observed_and_rescued(self, harness: Harness) -> None:
        observer = Observer()
        alive, gone = await harness.worker(), await harness.worker()
        mine, lost = await harness.start(alive), await harness.start(gone)
        dead: dict[UUID, int] = {}
        for second in range(60):
            assert not dead
            harness.clock.advance(1)
            if second % 10 == 0:
                await harness.store.beat(alive, held(mine))
            dead = observer.observe(await harness.store.sightings(), harness.clock.monotonic())
            if dead:
                break
        assert set(dead) == {gone}
        assert await harness.store.rescue(dead) == [lost.id]
        assert await harness.state(lost.id) is JobState.PENDING
        assert await harness.state(mine.id) is JobState.ACTIVE
        assert {sighting.worker for sighting in await harness.store.sightings()} == {alive}

    async def test_a_rescued_job_is_ready_uncharged_and_its_crash_counted(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        before = await harness.record(claimed.id)
        harness.clock.advance(MINUTE)
        assert await lose(harness, worker) == [claimed.id]
        after = await harness.record(claimed.id)
        assert (after.state, after.stage, after.lane) == (JobState.PENDING, Stage.READY, Lane.GIVEN_BACK)
        assert (after.attempt, after.runs, after.crashes) == (0, 1, 1)
        assert after.token != claimed.token
        expected = lifecycle.finish(before, lifecycle.after_crash(before, crash_of(worker)), harness.clock.now())
        assert (after.due_at, after.error_type, after.error_message) == (
            expected.due_at,
            expected.error_type,
            expected.error_message,
        )
        [attempt] = await harness.store.attempts(claimed.id)
        assert (attempt.run, attempt.worker, attempt.ended_at) == (1, worker, harness.clock.now())
        assert attempt.failure == crash_of(worker).failure
        await harness.check_counters()

    async def test_a_worker_that_beat_in_the_meantime_is_spared(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        beat = await beat_of(harness, worker)
        await harness.store.beat(worker, held(claimed))
        before = await harness.snapshot([claimed.id])
        assert await harness.store.rescue({worker: beat}) == []
        assert await harness.snapshot([claimed.id]) == before
        assert (await harness.store.beat(worker, held(claimed))).is_alive

    async def test_a_zombie_can_neither_settle_nor_spoil_what_was_taken_over(self, harness: Harness) -> None:
        zombie, heir = await harness.worker(), await harness.worker()
        stale = await harness.start(zombie)
        await lose(harness, zombie)
        transitions = (Complete("1"), Bury(FAILURE), GiveBack(), GiveBack(MINUTE, is_charged=True, failure=FAILURE))
        for transition in transitions:
            before = await harness.snapshot([stale.id])
            assert await harness.settle(stale, transition) is Settled.STALE
            assert await harness.snapshot([stale.id]) == before
        [current] = await harness.claim(heir, queue=stale.queue)
        for transition in transitions:
            before = await harness.snapshot([stale.id])
            assert await harness.settle(stale, transition) is Settled.STALE
            assert await harness.snapshot([stale.id]) == before
        assert await harness.settle(current, Complete("2")) is Settled.APPLIED
        before = await harness.snapshot([stale.id])
        assert await harness.settle(stale, Complete("1")) is Settled.STALE
        assert await harness.snapshot([stale.id]) == before

    async def test_a_job_that_loses_one_worker_after_the_other_goes_dead_at_last(self, harness: Harness) -> None:
        id = await harness.enqueue(max_attempts=2, idempotency_key="k")
        for crashes in range(1, lifecycle.MOST_LOSSES + 1):
            assert await harness.state(id) is JobState.PENDING, "machines are lost for many reasons"
            worker = await harness.worker()
            assert ids_of(await harness.claim(worker)) == [id]
            harness.clock.advance(MINUTE)
            assert await lose(harness, worker) == [id]
            assert (await harness.record(id)).crashes == crashes
        record = await harness.record(id)
        assert (record.state, record.runs, record.finished_at) == (JobState.DEAD, 10, harness.clock.now())
        attempts = await harness.store.attempts(id)
        kinds = [attempt.failure and attempt.failure.kind for attempt in attempts]
        assert kinds == [FailureKind.CRASH] * 10
        assert await harness.claim() == []
        harness.clock.advance(2 * harness.retention.idempotency)
        assert await harness.enqueue(idempotency_key="k") != id, "its key must have got an end"

    async def test_an_at_most_once_job_is_lost_rather_than_run_twice(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker, delivery=Delivery.AT_MOST_ONCE)
        await lose(harness, worker)
        assert await harness.state(claimed.id) is JobState.DEAD
        [attempt] = await harness.store.attempts(claimed.id)
        assert attempt.failure is not None
        assert attempt.failure.kind is FailureKind.LOST
        assert await harness.claim(queue=claimed.queue) == []
        assert await harness.settle(claimed, Complete()) is Settled.STALE

    async def test_a_rescued_job_that_is_to_be_cancelled_ends_so(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        await harness.store.cancel([claimed.id], "no")
        assert await lose(harness, worker) == [claimed.id]
        assert await harness.state(claimed.id) is JobState.CANCELLED
        assert await harness.settle(claimed, Complete()) is Settled.STALE

    async def test_rescued_jobs_go_before_fresh_ones(self, harness: Harness) -> None:
        worker = await harness.worker()
        lost = await harness.start(worker, queue="default")
        fresh = await harness.enqueue()
        await lose(harness, worker)
        assert ids_of(await harness.claim(demand=2)) == [lost.id, fresh]

    async def test_a_large_rescue_goes_on_where_it_stopped(self, harness: Harness) -> None:
        worker = await harness.worker()
        ids = await harness.enqueue_many(2_500)
        await harness.claim(worker, 2_500)
        rescued = await lose(harness, worker)
        while more := await harness.store.rescue({}):
            rescued += more
        assert sorted(rescued) == sorted(ids)
        assert (await harness.queue()).waiting == 2_500
        assert all(job.crashes == 1 for job in await harness.everything())

    async def test_rescue_without_anybody_gone_takes_nothing(self, harness: Harness) -> None:
        claimed = await harness.start()
        assert await harness.store.rescue({}) == []
        assert await harness.store.rescue({uuid4(): 1}) == []
        assert await harness.state(claimed.id) is JobState.ACTIVE

    async def test_racing_rescuers_count_one_crash(self, harness: Harness) -> None:
        stores = harness.pair()
        worker = await harness.worker()
        claimed = [await harness.start(worker) for _ in range(5)]
        beat = await beat_of(harness, worker)
        rescued = await asyncio.gather(*(stores[n % 2].rescue({worker: beat}) for n in range(6)))
        assert sorted(id for ids in rescued for id in ids) == sorted(ids_of(claimed))
        assert [job.crashes for job in await harness.store.get(ids_of(claimed))] == [1] * 5

    async def test_a_beat_and_a_rescue_that_race_agree(self, harness: Harness) -> None:
        stores = harness.pair()
        for _ in range(10):
            worker = await harness.worker()
            claimed = await harness.start(worker)
            beat = await beat_of(harness, worker)
            beaten, rescued = await asyncio.gather(
                stores[0].beat(worker, held(claimed)), stores[1].rescue({worker: beat})
            )
            assert rescued == ([] if beaten.is_alive else [claimed.id])
            assert await harness.state(claimed.id) is (JobState.ACTIVE if beaten.is_alive else JobState.PENDING)


class BuryContract:
    async def test_a_buried_worker_s_jobs_are_given_back(self, harness: Harness) -> None:
        worker = await harness.worker()
        jobs = [await harness.start(worker) for _ in range(3)]
        other = await harness.start()
        assert sorted(await harness.store.bury_worker(worker)) == sorted(ids_of(jobs))
        for record in await harness.store.get(ids_of(jobs)):
            assert (record.stage, record.attempt, record.crashes) == (Stage.READY, 0, 0)
        assert await harness.state(other.id) is JobState.ACTIVE
        assert not (await harness.store.beat(worker, held(*jobs))).is_alive

    async def test_what_is_known_is_settled_and_the_rest_had_not_started(self, harness: Harness) -> None:
        worker = await harness.worker()
        done, guilty, unstarted, rest = [await harness.start(worker) for _ in range(4)]
        before = await harness.record(guilty.id)
        crash = GiveBack(is_charged=True, failure=FAILURE, has_crashed=True)
        transitions: list[Transition] = [Complete("1"), crash, GiveBack()]
        settlements = [
            Settlement(job.id, job.token, what)
            for job, what in zip((done, guilty, unstarted), transitions, strict=True)
        ]
        assert await harness.store.bury_worker(worker, settlements) == [rest.id]
        assert (await harness.record(done.id)).result_json == "1"
        expected = lifecycle.finish(before, crash, harness.clock.now())
        assert placeless(await harness.record(guilty.id)) == placeless(expected)
        assert (await harness.record(unstarted.id)).crashes == 0
        assert (await harness.record(rest.id)).crashes == 0
        await harness.check_counters()

    async def test_a_settlement_in_a_burial_is_fenced_too(self, harness: Harness) -> None:
        worker = await harness.worker()
        mine, others = await harness.start(worker), await harness.start()
        before = await harness.record(others.id)
        stale = [Settlement(others.id, mine.token, Complete()), Settlement(mine.id, uuid4(), Complete())]
        assert await harness.store.bury_worker(worker, stale) == [mine.id]
        assert await harness.record(others.id) == before
        assert await harness.state(mine.id) is JobState.PENDING

    async def test_burying_twice_changes_nothing_more(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        settlement = Settlement(claimed.id, claimed.token, Bury(FAILURE))
        await harness.store.bury_worker(worker, [settlement])
        [record] = await harness.store.workers()
        before = await harness.snapshot([claimed.id])
        harness.clock.advance(5)
        assert await harness.store.bury_worker(worker, [settlement]) == []
        assert await harness.snapshot([claimed.id]) == before
        assert await harness.store.workers() == [record]

    async def test_burying_a_worker_nobody_knows_does_no_harm(self, harness: Harness) -> None:
        claimed = await harness.start()
        assert await harness.store.bury_worker(uuid4()) == []
        assert await harness.state(claimed.id) is JobState.ACTIVE

    async def test_who_was_never_started_is_never_to_blame(self, harness: Harness) -> None:
        id = await harness.enqueue()
        for _ in range(5):
            worker = await harness.worker()
            await harness.claim(worker)
            assert await harness.store.bury_worker(worker) == [id]
        assert await harness.state(id) is JobState.PENDING

    async def test_what_may_run_once_is_not_given_out_again(self, harness: Harness) -> None:
        id = await harness.enqueue(delivery=Delivery.AT_MOST_ONCE)
        worker = await harness.worker()
        await harness.claim(worker)
        await harness.store.bury_worker(worker)
        assert await harness.state(id) is JobState.DEAD


class DepartContract:
    async def test_a_departing_worker_gives_back_what_it_holds_uncharged(self, harness: Harness) -> None:
        worker = await harness.worker()
        jobs = [await harness.start(worker) for _ in range(3)]
        other = await harness.start()
        assert sorted(await harness.store.depart(worker)) == sorted(ids_of(jobs))
        for record in await harness.store.get(ids_of(jobs)):
            assert (record.stage, record.lane) == (Stage.READY, Lane.GIVEN_BACK)
            assert (record.attempt, record.crashes) == (0, 0)
            assert await harness.store.attempts(record.id) == []
        assert await harness.state(other.id) is JobState.ACTIVE
        await harness.check_counters()

    async def test_a_job_that_is_to_be_cancelled_ends_so_when_its_worker_departs(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        await harness.store.cancel([claimed.id], "no")
        before = await harness.record(claimed.id)
        harness.clock.advance(5)
        assert await harness.store.depart(worker) == [claimed.id]
        await check_cancelled(harness, before)

    async def test_an_at_most_once_job_does_not_start_again_when_its_worker_departs(self, harness: Harness) -> None:
        worker = await harness.worker()
        await harness.enqueue(delivery=Delivery.AT_MOST_ONCE)
        [claimed] = await harness.claim(worker)
        await harness.store.depart(worker)
        record = await harness.record(claimed.id)
        assert (record.state, record.runs) == (JobState.DEAD, 1)
        [attempt] = await harness.store.attempts(claimed.id)
        assert attempt.failure is not None
        assert attempt.failure.kind is FailureKind.LOST

    async def test_a_worker_that_registers_again_begins_with_empty_hands(self, harness: Harness) -> None:
        worker = await harness.worker()
        await harness.enqueue(delivery=Delivery.AT_MOST_ONCE)
        [strict] = await harness.claim(worker)
        other = await harness.start(worker)
        await harness.store.register(NewWorker(worker, "again"))
        await harness.store.beat(worker, Held({}))
        assert await harness.state(strict.id) is JobState.DEAD
        record = await harness.record(other.id)
        assert (record.stage, record.attempt, record.crashes) == (Stage.READY, 0, 1)
        assert ids_of(await harness.claim(worker, queue=record.queue)) == [other.id]

    async def test_what_was_observed_of_an_earlier_life_does_not_end_a_worker_that_registered_again(
        self, harness: Harness
    ) -> None:
        worker = await harness.worker()
        [seen] = await harness.store.sightings()
        await harness.store.register(NewWorker(worker, "again"))
        await harness.store.rescue({worker: seen.beat})
        assert [sighting.worker for sighting in await harness.store.sightings()] == [worker]

    async def test_a_departed_worker_is_forgotten(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        await harness.store.depart(worker)
        assert await harness.store.workers() == []
        assert await harness.store.sightings() == []
        before = await harness.snapshot([claimed.id])
        assert await harness.settle(claimed, Complete()) is Settled.STALE
        assert await harness.snapshot([claimed.id]) == before

    async def test_departing_again_does_no_harm(self, harness: Harness) -> None:
        worker = await harness.worker()
        assert await harness.store.depart(worker) == []
        assert await harness.store.depart(worker) == []


class WorkerContract(RegisterContract, BeatContract, QuietContract, RescueContract, BuryContract, DepartContract):
    """Who works, and who does not any more."""
