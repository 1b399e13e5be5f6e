"""Why jobs wait: all the circumstances of a job are there, as of one moment, whatever it waits for."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from holdfast.explain import explain
from holdfast.explanation import Explanation, ReasonKind
from holdfast.lifecycle import GiveBack
from holdfast.store import Circumstances, NewWorker, ProgressReport, TaskDefinition
from holdfast.testing.store_contract.harness import SECOND, Harness, ids_of

MINUTE = 60 * SECOND


async def circumstances(harness: Harness, id: UUID) -> Circumstances:
    found = await harness.store.circumstances(id)
    assert found is not None
    assert found.now == harness.clock.now()
    assert found.job == await harness.record(id)
    return found


async def explained(harness: Harness, id: UUID) -> Explanation:
    return explain(await circumstances(harness, id))


class ExplainingContract:
    async def test_of_a_job_that_is_not_there_nothing_can_be_said(self, harness: Harness) -> None:
        assert await harness.store.circumstances(uuid4()) is None

    async def test_a_job_can_be_explained_in_every_state(self, harness: Harness) -> None:
        await harness.worker()
        expected = {
            "ready": ReasonKind.NO_WORKER,
            "scheduled": ReasonKind.SCHEDULED,
            "given back": ReasonKind.NO_WORKER,
            "retrying": ReasonKind.RETRY,
            "active": ReasonKind.RUNNING,
            "completed": ReasonKind.COMPLETED,
            "cancelled": ReasonKind.CANCELLED,
            "dead": ReasonKind.DEAD,
        }
        for state, id in (await harness.in_every_state()).items():
            explanation = await explained(harness, id)
            assert (state, explanation.kinds[0]) == (state, expected[state])
            assert explanation.state is await harness.state(id)

    async def test_the_pause_of_its_queue_is_seen(self, harness: Harness) -> None:
        id = await harness.enqueue()
        assert (await circumstances(harness, id)).paused_at is None
        paused_at = harness.clock.now()
        await harness.store.pause("default")
        await harness.store.pause("other")
        harness.clock.advance(5)
        assert (await circumstances(harness, id)).paused_at == paused_at
        await harness.store.resume("default")
        assert (await circumstances(harness, id)).paused_at is None

    # ── its place ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_those_that_are_claimed_before_it_are_counted(self, harness: Harness) -> None:
        worker = await harness.worker()
        given_back = await harness.start(worker, queue="q")
        first, second = await harness.enqueue_many(2, queue="q")
        low = await harness.enqueue(queue="q", priority=1)
        high = await harness.enqueue(queue="q", priority=9)
        await harness.enqueue(queue="q", delay=MINUTE, priority=9)
        await harness.enqueue_many(3, queue="other")
        await harness.store.depart(worker)
        ids = [high, given_back.id, first, second, low]
        assert [(await circumstances(harness, id)).ahead for id in ids] == [0, 1, 2, 3, 4]
        assert ids_of(await harness.claim(demand=5, queue="q")) == ids, "they are claimed in this very order"

    async def test_what_has_expired_is_not_before_it(self, harness: Harness) -> None:
        await harness.enqueue(expires_in=SECOND)
        await harness.enqueue_many(2, expires_in=2 * SECOND)
        id = await harness.enqueue()
        harness.clock.advance(1)
        assert (await circumstances(harness, id)).ahead == 2

    async def test_only_what_is_ready_has_a_place(self, harness: Harness) -> None:
        await harness.enqueue_many(3)
        running = await harness.start()
        await harness.enqueue_many(3, queue=running.queue)
        later = await harness.enqueue(delay=MINUTE)
        assert [(await circumstances(harness, id)).ahead for id in (running.id, later)] == [0, 0]

    # ── who could run it ─────────────────────────────────────────────────────────────────────────────────────────────

    async def test_workers_are_shown_with_what_they_serve_and_know(self, harness: Harness) -> None:
        id = await harness.enqueue()
        assert (await explained(harness, id)).kinds[0] is ReasonKind.NO_WORKER
        elsewhere = NewWorker(uuid4(), "elsewhere", "host", 1, ("other",), ("task",))
        await harness.store.register(elsewhere)
        assert (await explained(harness, id)).kinds[0] is ReasonKind.NO_WORKER
        await harness.store.register(NewWorker(uuid4(), "ignorant", "host", 1, ("default",), ("charge",)))
        assert (await explained(harness, id)).kinds[0] is ReasonKind.UNKNOWN_TASK
        able = NewWorker(uuid4(), "able", "host", 1, (), ("task",))
        await harness.store.register(able)
        assert (await explained(harness, id)).kinds == (ReasonKind.POSITION,)
        shown = {worker.id: worker for worker in (await circumstances(harness, id)).workers}
        assert shown == {worker.id: worker for worker in await harness.store.workers()}
        await harness.store.quiet(able.id)
        assert (await explained(harness, id)).kinds[0] is ReasonKind.UNKNOWN_TASK

    async def test_dead_workers_are_left_out_except_the_job_s_own(self, harness: Harness) -> None:
        id = await harness.enqueue()
        worker = await harness.worker()
        await harness.store.bury_worker(worker)
        assert (await circumstances(harness, id)).workers == ()
        mine = await harness.worker("mine")
        running = await harness.start(mine)
        assert [worker.name for worker in (await circumstances(harness, running.id)).workers] == ["mine"]

    async def test_a_worker_that_has_been_silent_for_long_counts_for_nothing(self, harness: Harness) -> None:
        """Nobody may be there to declare it dead."""
        id = await harness.enqueue()
        worker = await harness.worker()
        running = await harness.start(worker)
        assert (await explained(harness, id)).kinds == (ReasonKind.POSITION,)
        harness.clock.advance("1m")
        assert (await explained(harness, id)).kinds[0] is ReasonKind.NO_WORKER
        assert (await explained(harness, running.id)).kinds == (ReasonKind.LOST, ReasonKind.RUNNING)

    @pytest.mark.parametrize("name", ["charge", "pay"])
    async def test_its_task_is_found_by_name_and_by_alias(self, harness: Harness, name: str) -> None:
        id = await harness.enqueue(task=name)
        assert (await circumstances(harness, id)).task is None
        definition = TaskDefinition(name="charge", aliases=("pay", "bill"))
        await harness.store.publish_tasks([definition, TaskDefinition(name="other", aliases=("charges",))])
        published = (await circumstances(harness, id)).task
        assert published is not None
        assert published.definition == definition

    # ── what it does ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_what_a_running_job_has_reported_is_shown(self, harness: Harness) -> None:
        running = await harness.start()
        assert (await circumstances(harness, running.id)).progress is None
        await harness.store.report_progress([ProgressReport(running.id, running.token, 3, 10, "scaling")])
        found = await circumstances(harness, running.id)
        assert {running.id: found.progress} == await harness.store.progress([running.id])
        await harness.settle(running, GiveBack())
        await harness.claim(queue=running.queue)
        assert (await circumstances(harness, running.id)).progress is None, "it has said nothing in this run"

    async def test_a_running_job_that_was_asked_to_stop_says_so(self, harness: Harness) -> None:
        running = await harness.start()
        await harness.store.cancel([running.id], "not wanted")
        explanation = await explained(harness, running.id)
        assert explanation.kinds == (ReasonKind.CANCELLING, ReasonKind.RUNNING)
        assert "not wanted" in str(explanation)

    async def test_asking_changes_nothing(self, harness: Harness) -> None:
        ids = list((await harness.in_every_state()).values())
        before = await harness.snapshot(ids)
        for id in ids:
            await harness.store.circumstances(id)
        assert await harness.snapshot(ids) == before
