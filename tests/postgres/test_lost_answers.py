"""The connection is lost while a verb is under way: it has happened once, or not at all, and its answer is true."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from holdfast.errors import OutcomeUnknown, StoreUnavailable
from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.job import JobState, Stage
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition, Withdraw
from holdfast.store import Filter, Held, NewWorker, Queue, Settled, Settlement, TaskDefinition
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_contract.lines import limit, rate
from tests.crash.rounds import IS_THOROUGH
from tests.postgres.database import Database, until
from tests.postgres.jobs import FAILURE, QUEUE, bury, claim, enqueue, new, register, settle, start
from tests.postgres.moments import moments
from tests.postgres.proxy import CUTS, Harm, Proxy

each_cut = pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name.lower())
a_cut = pytest.mark.parametrize("cut", CUTS if IS_THOROUGH else [Harm.CUT_AFTER], ids=lambda cut: cut.name.lower())


# ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@a_cut
@pytest.mark.parametrize(
    ("transition", "stage", "attempts"),
    [
        (Complete('"done"'), Stage.COMPLETED, 0),
        (Bury(FAILURE), Stage.DEAD, 1),
        (Withdraw("no more"), Stage.CANCELLED, 1),
        (GiveBack(timedelta(hours=1), is_charged=True, failure=FAILURE), Stage.SCHEDULED, 1),
        (GiveBack(), Stage.READY, 0),
    ],
    ids=["complete", "bury", "withdraw", "retry", "release"],
)
async def test_a_settlement_whose_answer_is_lost_is_never_called_stale(
    far_store: PostgresStore,
    store: PostgresStore,
    proxy: Proxy,
    database: Database,
    cut: Harm,
    transition: Transition,
    stage: Stage,
    attempts: int,
) -> None:
    worker = await register(store)
    async for moment in moments(proxy, far_store, cut):
        jobs = await start(store, worker, 3)
        with moment:
            answers = await settle(far_store, jobs, transition)
        assert set(answers) <= {Settled.APPLIED, Settled.ALREADY}
        ids = [job.id for job in jobs]
        assert [record.stage for record in await store.get(ids)] == [stage] * 3
        written = await database.value("select count(*) from holdfast.failures where job = any ($1)", ids)
        assert written == 3 * attempts
        assert await settle(store, jobs, transition) == [Settled.ALREADY] * 3


@each_cut
async def test_callers_that_settle_together_each_get_their_own_answer(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, cut: Harm
) -> None:
    worker = await register(store)
    async for moment in moments(proxy, far_store, cut):
        one, other, stale = [await start(store, worker) for _ in range(3)]
        with moment:
            answers = await asyncio.gather(
                settle(far_store, one, Complete()),
                far_store.settle([Settlement(stale[0].id, uuid4(), Complete())]),
                settle(far_store, other, Bury(FAILURE)),
            )
        assert answers[1] == [Settled.STALE]
        assert {*answers[0], *answers[2]} <= {Settled.APPLIED, Settled.ALREADY}
        stages = [record.stage for record in await store.get([one[0].id, stale[0].id, other[0].id])]
        assert stages == [Stage.COMPLETED, Stage.ACTIVE, Stage.DEAD]


# ── claiming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@each_cut
async def test_a_claim_whose_answer_is_lost_is_found_again_or_given_back_by_the_next_beat(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database, cut: Harm
) -> None:
    worker = await register(store)
    async for moment in moments(proxy, far_store, cut):
        queue = f"queue-{uuid4()}"
        there = await enqueue(store, 5, queue=queue)
        with moment:
            claimed = await claim(far_store, worker, 3, queue)
        await until(database.is_quiet)  # a claim that nobody waits for any more may still be under way
        held = {job.id: job.token for job in claimed}
        assert len({job.token for job in claimed}) <= 1
        beaten = await store.beat(worker, Held(held))
        assert not beaten.taken
        active = {record.id for record in await store.get(there) if record.stage is Stage.ACTIVE}
        assert active == set(held)
        if cut is not Harm.CUT_BEHIND:
            assert [job.id for job in claimed] == there[:3]
            assert not beaten.released
        # The rest can be claimed by anybody, at once.
        rest = await claim(store, worker, 10, queue)
        assert {job.id for job in rest} == set(there) - set(held)
        assert await settle(store, claimed + rest, Complete()) == [Settled.APPLIED] * 5


@pytest.mark.usefixtures("_impatient")
async def test_a_claim_in_doubt_is_given_back_by_the_next_beat(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy
) -> None:
    worker = await register(store)
    there = await enqueue(store, 3)
    plan = proxy.plan(Harm.CUT_AFTER, "update holdfast.jobs")
    token = uuid4()
    claiming = asyncio.create_task(far_store.claim(worker, token, {QUEUE: 3}))
    await plan.happened.wait()
    proxy.go_away()
    with pytest.raises(OutcomeUnknown, match="heartbeat"):
        await claiming
    assert (await store.beat(worker, Held({}, frozenset({token})))).released == []
    assert sorted((await store.beat(worker, Held({}))).released) == there
    again = await claim(store, worker, 3)
    assert [job.id for job in again] == there
    assert {job.attempt for job in again} == {1}, "a claim that was never answered must not be charged"


async def test_jobs_that_are_found_again_are_behind_others_only_in_an_order(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy
) -> None:
    """Jobs that a rate has let through must not wait for each other: they count from when they were claimed."""
    worker = await register(store)
    train = LineRule((GateRule(GateKind.ORDER, "task", "key", 10),))
    for rule in (rate(5), limit(5), train):
        queue = f"queue-{uuid4()}"
        await enqueue(store, 1, queue=queue, line=rule)
        await settle(store, await claim(far_store, worker, 5, queue), Complete())  # from now on it knows what is there
        there = await enqueue(store, 3, queue=queue, line=rule)
        plan = proxy.plan(Harm.CUT_AFTER, "taken.*, room.queues")
        claimed = await far_store.claim(worker, uuid4(), {queue: 5}, None, 4)
        assert plan.done == 1
        assert [job.id for job in claimed] == there
        behind = [None, *there[:2]] if rule == train else [None] * 3
        assert [job.behind for job in claimed] == behind


# ── steering ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@each_cut
@pytest.mark.parametrize("verb", ["cancel", "run_now", "retry", "discard"])
async def test_who_steers_is_told_what_happened_or_that_it_is_not_known(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, cut: Harm, verb: str
) -> None:
    worker = await register(store)
    doubts = 0
    async for moment in moments(proxy, far_store, cut):
        if verb in ("retry", "discard"):
            ids = await bury(store, worker, 2, unique_key=None)
        else:
            ids = await enqueue(store, 2, delay=timedelta(hours=1))
        steer = getattr(far_store, verb)
        with moment:
            try:
                rulings = await (steer(ids, "not wanted") if verb == "cancel" else steer(ids))
            except OutcomeUnknown:
                doubts += 1
                assert moment.has_come
                rulings = None
        records = await store.get(ids)
        after = {"cancel": Stage.CANCELLED, "run_now": Stage.READY, "retry": Stage.READY}.get(verb)
        has_happened = [record.stage for record in records] == ([after] * 2 if after else [])
        if rulings is not None:
            assert has_happened
            assert all(ruling.is_done for ruling in rulings.values())
        elif not has_happened:
            before = Stage.SCHEDULED if verb in ("cancel", "run_now") else Stage.DEAD
            assert [record.stage for record in records] == [before] * 2
        if verb == "retry":
            assert {record.generation for record in records} <= ({1} if rulings is not None else {0, 1})
    assert doubts <= 2, "only the commit itself can leave a doubt"


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@a_cut
async def test_registering_beating_and_leaving_survive_a_cut(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, cut: Harm
) -> None:
    async for moment in moments(proxy, far_store, cut):
        worker = uuid4()
        with moment:
            await far_store.register(NewWorker(worker, "worker", queues=(QUEUE,)))
            (held,) = await claim(store, worker, queue=(await start_one(store)))
            beaten = await far_store.beat(worker, Held({held.id: held.token}))
            assert beaten.is_alive
            assert not beaten.taken
            assert not beaten.released
            (record,) = [record for record in await store.workers() if record.id == worker]
            assert record.beat >= 2
            await far_store.depart(worker)
        assert worker not in {record.id for record in await store.workers()}
        (job,) = await store.get([held.id])
        assert (job.stage, job.attempt) == (Stage.READY, 0)


async def start_one(store: PostgresStore) -> str:
    """A fresh queue with one job in it."""
    queue = f"queue-{uuid4()}"
    await enqueue(store, queue=queue)
    return queue


@a_cut
@pytest.mark.parametrize("verb", ["rescue", "bury_worker"])
async def test_a_rescue_that_is_cut_short_leaves_no_job_behind(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database, cut: Harm, verb: str
) -> None:
    async for moment in moments(proxy, far_store, cut):
        worker = await register(store)
        known, orphan = await start(store, worker, 2)
        with moment:
            if verb == "rescue":
                await far_store.rescue({worker: 1})
            else:
                await far_store.bury_worker(worker, [Settlement(known.id, known.token, Complete())])
        assert not await database.stuck()
        records = await store.get([known.id, orphan.id])
        assert [record.stage for record in records] == [
            Stage.READY if verb == "rescue" else Stage.COMPLETED,
            Stage.READY,
        ]
        assert records[1].crashes == (verb == "rescue")
        assert not (await store.beat(worker, Held({}))).is_alive


# ── the others ───────────────────────────────────────────────────────────────────────────────────────────────────────


@a_cut
async def test_a_tick_that_is_cut_short_ripens_each_job_once(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, database: Database, cut: Harm
) -> None:
    past = timedelta(microseconds=1)
    async for moment in moments(proxy, far_store, cut):
        queue = f"queue-{uuid4()}"
        due = await enqueue(store, 3, queue=queue, delay=past)
        late = await enqueue(store, 2, queue=queue, delay=timedelta(hours=1), expires_in=timedelta(hours=1))
        await database.ask("update holdfast.jobs set expires_at = 1 where id = any ($1)", late)
        with moment:
            tick = await far_store.tick()
        assert tick.next_in is None
        assert [record.stage for record in await store.get(due)] == [Stage.READY] * 3
        assert [record.stage for record in await store.get(late)] == [Stage.DEAD] * 2
        assert await database.value("select count(*) from holdfast.failures where job = any ($1)", late) == 2


_READY = frozenset({JobState.PENDING})


@a_cut
@pytest.mark.parametrize(
    "verb", ["declare", "bound", "pause", "publish", "get", "page", "count", "attempts", "prune", "sightings"]
)
async def test_what_may_be_done_twice_goes_on_over_a_cut(
    far_store: PostgresStore, store: PostgresStore, proxy: Proxy, cut: Harm, verb: str
) -> None:
    worker = await register(store)
    async for moment in moments(proxy, far_store, cut):
        queue = f"queue-{uuid4()}"
        (id,) = await enqueue(store, queue=queue)
        with moment:
            match verb:
                case "declare":
                    await far_store.declare_queues([Queue(queue, bound=7)])
                case "bound":
                    await far_store.set_bound(queue, 7)
                case "pause":
                    await far_store.pause(queue)
                case "publish":
                    await far_store.publish_tasks([TaskDefinition(name=queue)])
                case "get":
                    assert [job.id for job in await far_store.get([id])] == [id]
                case "page":
                    assert [job.id for job in (await far_store.page(Filter(queue=queue))).jobs] == [id]
                case "count":
                    assert await far_store.count(Filter(queue=queue, states=_READY)) == 1
                case "attempts":
                    assert await far_store.attempts(id) == []
                case "prune":
                    assert (await far_store.prune()).jobs == 0
                case _:
                    assert [sighting.worker for sighting in await far_store.sightings()] == [worker]
        (record,) = [record for record in await store.queues() if record.name == queue]
        assert record.waiting == 1
        assert record.is_paused is (verb == "pause")
        assert (record.bound == 7) is (verb in ("declare", "bound"))
        assert [task.revision for task in await store.tasks([queue])] == ([1] if verb == "publish" else [])


@a_cut
async def test_a_database_that_is_cut_off_while_it_is_opened_can_be_opened_again(
    far_store: PostgresStore, proxy: Proxy, database: Database, cut: Harm
) -> None:
    async for moment in moments(proxy, far_store, cut, few=5):
        await far_store.close()
        await until(database.is_quiet)  # a migration that nobody waits for any more may still be under way
        await database.execute("drop schema if exists holdfast cascade")
        opening, job = PostgresStore(proxy.url), new()
        with moment:
            try:
                await opening.enqueue([job])
            except StoreUnavailable:
                assert moment.has_come
                await opening.enqueue([job])
        await opening.close()
        assert await database.ids() == [job.id]
