"""Queues and tasks: what the code declares, what people changed, and counters that tell the truth."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from uuid import UUID, uuid4

from holdfast.errors import WorkerDeclaredDead
from holdfast.job import ClaimedJob
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition, Withdraw
from holdfast.store import DEFAULT_BOUND, Held, Queue, QueueRecord, TaskDefinition
from holdfast.testing.store_contract.harness import FAILURE, Harness, ids_of

MINUTE = timedelta(minutes=1)


class QueueContract:
    async def test_a_queue_exists_as_soon_as_it_is_used(self, harness: Harness) -> None:
        assert await harness.store.queues() == []
        await harness.enqueue(queue="used")
        assert await harness.store.queues() == [QueueRecord("used", waiting=1)]

    async def test_queues_with_ready_jobs_are_known_by_name(self, harness: Harness) -> None:
        assert await harness.store.busy_queues() == []
        await harness.store.declare_queues([Queue("empty")])
        for queue in ("b", "a", "ä", "b", "paused"):
            await harness.enqueue(queue=queue)
        await harness.enqueue(queue="later", delay=MINUTE)
        await harness.store.pause("paused")
        assert sorted(await harness.store.busy_queues()) == sorted(["a", "b", "paused", "ä"])
        await harness.claim(queue="a")
        assert sorted(await harness.store.busy_queues()) == sorted(["b", "paused", "ä"])

    async def test_a_declared_queue_has_its_bounds(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("a", bound=5, scheduled_bound=7), Queue("b")])
        assert await harness.queue("a") == QueueRecord("a", declared_bound=5, scheduled_bound=7)
        assert await harness.queue("b") == QueueRecord("b", declared_bound=DEFAULT_BOUND)

    async def test_a_declaration_changes_a_queue_that_is_in_use(self, harness: Harness) -> None:
        await harness.enqueue(queue="a")
        await harness.enqueue(queue="a", delay=MINUTE)
        await harness.store.pause("a")
        before = await harness.queue("a")
        await harness.store.declare_queues([Queue("a", bound=5)])
        after = await harness.queue("a")
        assert (after.declared_bound, after.waiting, after.scheduled) == (5, 1, 1)
        assert after.paused_at == before.paused_at

    async def test_the_latest_declaration_counts(self, harness: Harness) -> None:
        for bound in (5, 9):
            await harness.store.declare_queues([Queue("a", bound=bound, scheduled_bound=bound)])
        queue = await harness.queue("a")
        assert (queue.bound, queue.scheduled_bound) == (9, 9)

    async def test_a_bound_set_at_run_time_overrides_the_declared_one(self, harness: Harness) -> None:
        await harness.store.declare_queues([Queue("a", bound=5)])
        await harness.store.set_bound("a", 3)
        await harness.store.declare_queues([Queue("a", bound=9)])
        queue = await harness.queue("a")
        assert (queue.declared_bound, queue.override_bound, queue.bound) == (9, 3, 3)
        await harness.store.set_bound("a", None)
        queue = await harness.queue("a")
        assert (queue.override_bound, queue.bound) == (None, 9)

    async def test_a_queue_can_be_paused_before_it_is_used(self, harness: Harness) -> None:
        await harness.store.pause("later")
        await harness.enqueue(queue="later")
        assert await harness.claim(queue="later") == []

    async def test_a_bound_can_be_set_before_a_queue_is_used(self, harness: Harness) -> None:
        await harness.store.set_bound("later", 3)
        assert (await harness.queue("later")).bound == 3

    async def test_pause_says_since_when(self, harness: Harness) -> None:
        await harness.enqueue()
        harness.clock.advance(5.000001)
        await harness.store.pause("default")
        queue = await harness.queue()
        assert (queue.is_paused, queue.paused_at) == (True, harness.clock.now())
        await harness.store.resume("default")
        assert not (await harness.queue()).is_paused

    async def test_pausing_again_does_not_change_since_when(self, harness: Harness) -> None:
        await harness.store.pause("default")
        since = harness.clock.now()
        harness.clock.advance(5)
        await harness.store.pause("default")
        assert (await harness.queue()).paused_at == since

    async def test_resuming_what_is_not_paused_does_no_harm(self, harness: Harness) -> None:
        await harness.store.resume("default")
        await harness.enqueue()
        assert len(await harness.claim()) == 1

    async def test_what_runs_in_a_paused_queue_goes_on(self, harness: Harness) -> None:
        claimed = await harness.start(queue="default")
        await harness.store.pause("default")
        await harness.enqueue()
        await harness.settle(claimed, Complete())
        assert (await harness.queue()).waiting == 1

    async def test_counters_tell_the_truth_after_a_random_run(self, harness: Harness) -> None:
        chance = random.Random(17)
        workers = [await harness.worker() for _ in range(3)]
        running: list[ClaimedJob] = []
        for step in range(150):
            await self._random_step(harness, chance, workers, running)
            if step % 25 == 24:
                await harness.check_counters()
        await harness.check_counters()

    async def test_counters_tell_the_truth_after_a_race(self, harness: Harness) -> None:
        stores = harness.pair()
        workers = [await harness.worker() for _ in range(4)]
        ids = await harness.enqueue_many(40)
        waiting = await harness.enqueue_many(40, delay=MINUTE)
        harness.clock.advance(MINUTE)
        await asyncio.gather(
            *(stores[n % 2].claim(worker, uuid4(), {"default": 10}) for n, worker in enumerate(workers)),
            *(stores[n % 2].enqueue([harness.new(unique_key=str(n % 5))]) for n in range(20)),
            stores[0].cancel(ids[::3], "no"),
            stores[1].run_now(waiting[::3]),
            stores[0].tick(),
            stores[1].bury_worker(workers[0]),
            stores[0].depart(workers[1]),
            return_exceptions=True,
        )
        await harness.check_counters()

    async def _random_step(
        self, harness: Harness, chance: random.Random, workers: list[UUID], running: list[ClaimedJob]
    ) -> None:
        store = harness.store
        queue = chance.choice(("a", "b"))
        ids = [job.id for job in (await harness.everything())]
        some = chance.sample(ids, min(len(ids), 3))
        match chance.randrange(12):
            case 0 | 1 | 2:
                delay = chance.choice((None, None, MINUTE))
                expires = chance.choice((None, MINUTE))
                await harness.enqueue_many(3, queue=queue, delay=delay, expires_in=expires)
            case 3 | 4:
                running += await store.claim(chance.choice(workers), uuid4(), {"a": 2, "b": 2})
            case 5 | 6 if running:
                transitions: list[Transition] = [
                    Complete("1"),
                    Bury(FAILURE),
                    Withdraw("no"),
                    GiveBack(),
                    GiveBack(MINUTE),
                    GiveBack(MINUTE, is_charged=True, failure=FAILURE),
                ]
                await harness.settle(running.pop(chance.randrange(len(running))), chance.choice(transitions))
            case 7:
                await harness.pass_time(chance.choice((timedelta(seconds=20), MINUTE)))
            case 8:
                await chance.choice((store.retry, store.run_now, store.discard))(some)
            case 9:
                await store.cancel(some[:1], "no")
            case 10:
                worker = workers.pop(0)
                try:
                    await harness.claim(worker, queue=queue)
                except WorkerDeclaredDead:
                    raise AssertionError("only living workers are in the list") from None
                await (store.depart(worker) if chance.random() < 0.5 else store.bury_worker(worker))
                workers.append(await harness.worker())
            case _:
                await store.beat(chance.choice(workers), Held({job.id: job.token for job in running}))


class TaskContract:
    async def test_a_published_definition_is_there_whole(self, harness: Harness) -> None:
        definition = TaskDefinition(
            name="shop.charge",
            queue="billing",
            priority=8,
            max_attempts=3,
            delivery="transactional",
            soft_timeout=30.5,
            timeout=45.25,
            expires=3600,
            idempotency_key="charge:{order}",
            unique="{order}",
            unique_window=600,
            redact=("card", "it's"),
            aliases=("charge", "bill"),
            schema={"type": "object", "properties": {"é": {"enum": [None, 1, "'"]}}},
        )
        await harness.store.publish_tasks([definition])
        [published] = await harness.store.tasks()
        assert published.definition == definition
        assert published.published_at == harness.clock.now()

    async def test_definitions_are_found_by_name_or_alias(self, harness: Harness) -> None:
        one, two = TaskDefinition(name="one", aliases=("uno", "un")), TaskDefinition(name="two")
        await harness.store.publish_tasks([one, two])
        for name, expected in (("one", [one]), ("un", [one]), ("two", [two]), ("three", []), ("%", []), ("", [])):
            assert [task.definition for task in await harness.store.tasks([name])] == expected, name
        both = await harness.store.tasks(["two", "uno", "missing"])
        assert {task.definition.name for task in both} == {"one", "two"}
        assert {task.definition.name for task in await harness.store.tasks()} == {"one", "two"}
        assert await harness.store.tasks([]) == []

    async def test_a_definition_that_has_not_changed_keeps_its_revision(self, harness: Harness) -> None:
        definition = TaskDefinition(name="task", schema={"a": 1, "b": [1.5, None]}, aliases=("x",))
        await harness.store.publish_tasks([definition])
        before = await harness.store.tasks()
        harness.clock.advance(5)
        await harness.store.publish_tasks(
            [TaskDefinition(name="task", schema={"b": [1.5, None], "a": 1}, aliases=("x",))]
        )
        assert await harness.store.tasks() == before

    async def test_a_definition_that_has_changed_gets_a_new_revision(self, harness: Harness) -> None:
        await harness.store.publish_tasks([TaskDefinition(name="task"), TaskDefinition(name="other")])
        before = {task.definition.name: task for task in await harness.store.tasks()}
        harness.clock.advance(5)
        await harness.store.publish_tasks([TaskDefinition(name="task", priority=9), TaskDefinition(name="other")])
        after = {task.definition.name: task for task in await harness.store.tasks()}
        assert after["task"].definition.priority == 9
        assert after["task"].revision > before["task"].revision
        assert after["task"].published_at == harness.clock.now()
        assert after["other"] == before["other"]

    async def test_code_that_is_older_does_not_replace_what_younger_code_has_published(self, harness: Harness) -> None:
        old, new = TaskDefinition(name="task", priority=1), TaskDefinition(name="task", priority=9)
        await harness.store.publish_tasks([old], timedelta(seconds=1))
        harness.clock.advance(60)
        await harness.store.publish_tasks([new], timedelta(seconds=1))
        before = await harness.store.tasks()
        assert [task.definition for task in before] == [new]
        harness.clock.advance(60)
        fresh = TaskDefinition(name="fresh")
        await harness.store.publish_tasks([old, fresh], timedelta(seconds=121))
        assert await harness.store.tasks(["task"]) == before
        assert [task.definition for task in await harness.store.tasks(["fresh"])] == [fresh]

    async def test_going_back_to_an_older_definition_takes_younger_code(self, harness: Harness) -> None:
        old, new = TaskDefinition(name="task", priority=1), TaskDefinition(name="task", priority=9)
        for definition in (old, new, old):
            await harness.store.publish_tasks([definition], timedelta(seconds=1))
            harness.clock.advance(60)
        [published] = await harness.store.tasks()
        assert (published.definition, published.revision) == (old, 3)

    async def test_code_counts_from_its_start_and_not_from_its_publication(self, harness: Harness) -> None:
        old, new = TaskDefinition(name="task", priority=1), TaskDefinition(name="task", priority=9)
        await harness.store.publish_tasks([old], timedelta(seconds=10))
        harness.clock.advance(1)
        await harness.store.publish_tasks([new], timedelta(seconds=5))
        assert [task.definition for task in await harness.store.tasks()] == [new]

    async def test_who_does_not_tell_the_age_of_the_code_is_believed(self, harness: Harness) -> None:
        for priority in (1, 9):
            await harness.store.publish_tasks([TaskDefinition(name="task", priority=priority)])
        [published] = await harness.store.tasks()
        assert published.definition.priority == 9

    async def test_an_alias_that_was_dropped_is_not_found_any_more(self, harness: Harness) -> None:
        await harness.store.publish_tasks([TaskDefinition(name="task", aliases=("old",))])
        await harness.store.publish_tasks([TaskDefinition(name="task", aliases=("new",))])
        assert await harness.store.tasks(["old"]) == []
        assert len(await harness.store.tasks(["new"])) == 1

    async def test_nothing_to_publish_is_nothing_to_do(self, harness: Harness) -> None:
        await harness.store.publish_tasks([])
        assert await harness.store.tasks() == []

    async def test_racing_publishers_agree(self, harness: Harness) -> None:
        stores = harness.pair()
        definitions = [TaskDefinition(name=f"task-{n}", aliases=(f"alias-{n}",)) for n in range(20)]
        await asyncio.gather(*(stores[n % 2].publish_tasks(definitions) for n in range(6)))
        published = await harness.store.tasks()
        assert sorted(task.definition.name for task in published) == sorted(task.name for task in definitions)
        assert len({task.revision for task in published}) == 1

    async def test_a_claim_does_not_need_a_definition(self, harness: Harness) -> None:
        id = await harness.enqueue(task="nobody knows it")
        assert ids_of(await harness.claim()) == [id]
