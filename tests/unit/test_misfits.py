"""Jobs whose arguments don't fit here: given back while somebody newer may take them, dead after an hour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engine import Engine
from holdfast.errors import StoreUnavailable
from holdfast.job import ClaimedJob, Failure, FailureKind
from holdfast.lifecycle import Bury, GiveBack, Transition
from holdfast.outcome import Completed, Outcome, Raised, Verdict
from holdfast.store import PublishedTask, TaskDefinition
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from holdfast.worker.misfits import Misfits, is_misfit
from holdfast.worker.recorder import Place
from holdfast.worker.runs import Plan, Run
from tests.unit.claims import claimed_job

hf = Holdfast("memory://")
FAILURE = Failure(FailureKind.INVALID, "InvalidPayload", "It takes no 'no'.")
REFUSED = Raised(Verdict.PERMANENT, FAILURE)


@hf.task(aliases=["welcome"])
async def greet(name: str) -> None: ...


OWN = greet.definition()
NEWER = TaskDefinition(name="greet", schema={"type": "object", "properties": {"no": {}}})
PLAN = Plan(greet)


def misfit(**facts: Any) -> Run:
    return Run(claimed_job(**{"task": "greet", "args_json": '{"no":1}'} | facts), PLAN, Place.LOOP, 0, 0)


class Counting(MemoryStore):
    """Counts how often it is asked for definitions."""

    asked = 0
    is_away = False

    async def tasks(self, names: Any = None) -> list[PublishedTask]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().tasks(names)


class Desk:
    """Misfits at work, and what was decided."""

    def __init__(self, clock: ManualClock, store: Counting) -> None:
        self.clock = clock
        self.store = store
        self.decided: dict[Any, Transition] = {}
        self.has_decided = asyncio.Event()
        self.misfits = Misfits(Engine(lambda: store, clock), self._decide, self._settle)

    def _decide(self, run: Run, outcome: Outcome) -> Transition:
        assert isinstance(outcome, Raised)
        return Bury(outcome.failure)

    def _settle(self, slot: int, job: ClaimedJob, transition: Transition) -> None:
        self.decided[job.id] = transition
        self.has_decided.set()

    async def ask(self, *runs: Run) -> list[Transition]:
        for run in runs:
            self.decided.pop(run.job.id, None)
            self.misfits.add(run, REFUSED)
        while not all(run.job.id in self.decided for run in runs):
            self.has_decided.clear()
            await self.has_decided.wait()
        assert self.misfits.is_empty
        return [self.decided[run.job.id] for run in runs]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    clock = ManualClock()
    desk = Desk(clock, Counting(clock))
    working = asyncio.create_task(desk.misfits.run())
    yield desk
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_without_another_definition_it_is_invalid(desk: Desk) -> None:
    await desk.store.publish_tasks([OWN])
    assert await desk.ask(misfit()) == [Bury(FAILURE)]


async def test_a_definition_that_takes_the_same_arguments_would_not_help(desk: Desk) -> None:
    await desk.store.publish_tasks([TaskDefinition(name="greet", priority=9, schema=OWN.schema)])
    assert await desk.ask(misfit()) == [Bury(FAILURE)]


async def test_it_is_given_back_to_a_newer_definition_uncharged_and_later_each_time(desk: Desk) -> None:
    await desk.store.publish_tasks([NEWER])
    pauses = []
    for waits in range(8):
        (transition,) = await desk.ask(misfit(waits=waits))
        assert isinstance(transition, GiveBack)
        assert transition.has_waited
        assert not transition.is_charged
        pauses.append(transition.delay.total_seconds())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_it_is_dead_when_it_has_come_back_for_an_hour(desk: Desk) -> None:
    await desk.store.publish_tasks([NEWER])
    run = misfit()
    for _ in range(60):
        (transition,) = await desk.ask(run)
        assert isinstance(transition, GiveBack)
        desk.clock.advance("1m")
    (transition,) = await desk.ask(run)
    assert isinstance(transition, Bury)
    assert transition.failure.error_type == "InvalidPayload"
    (other,) = await desk.ask(misfit())
    assert isinstance(other, GiveBack), "each job has an hour of its own"


async def test_a_newer_task_that_has_this_name_as_an_alias_counts(desk: Desk) -> None:
    await desk.store.publish_tasks([OWN])
    desk.clock.advance("1s")
    await desk.store.publish_tasks([TaskDefinition(name="salute", aliases=("greet",), schema=NEWER.schema)])
    (transition,) = await desk.ask(misfit())
    assert isinstance(transition, GiveBack)


async def test_an_older_task_that_had_this_name_as_an_alias_does_not_count(desk: Desk) -> None:
    await desk.store.publish_tasks([TaskDefinition(name="salute", aliases=("greet",), schema=NEWER.schema)])
    desk.clock.advance("1s")
    await desk.store.publish_tasks([OWN])
    assert await desk.ask(misfit()) == [Bury(FAILURE)]


async def test_jobs_under_an_alias_are_judged_by_their_task(desk: Desk) -> None:
    await desk.store.publish_tasks([OWN])
    assert await desk.ask(misfit(task="welcome")) == [Bury(FAILURE)]
    await desk.store.publish_tasks([TaskDefinition(name="greet", aliases=("welcome",), schema=NEWER.schema)])
    (transition,) = await desk.ask(misfit(task="welcome"))
    assert isinstance(transition, GiveBack)


async def test_many_share_a_question(desk: Desk) -> None:
    await desk.store.publish_tasks([OWN])
    await desk.ask(*(misfit() for _ in range(1000)))
    assert desk.store.asked == 1


async def test_that_there_is_something_newer_is_remembered_for_a_few_seconds(desk: Desk) -> None:
    await desk.store.publish_tasks([NEWER])
    for _ in range(3):
        await desk.ask(misfit())
    assert desk.store.asked == 1
    desk.clock.advance("5s")
    await desk.ask(misfit())
    assert desk.store.asked == 2


async def test_that_there_is_nothing_newer_is_not_remembered(desk: Desk) -> None:
    """A job may be the first of a release that was published a moment ago."""
    await desk.store.publish_tasks([OWN])
    assert await desk.ask(misfit()) == [Bury(FAILURE)]
    await desk.store.publish_tasks([NEWER])
    (transition,) = await desk.ask(misfit())
    assert isinstance(transition, GiveBack)


async def test_while_the_store_is_away_nothing_is_dead(desk: Desk) -> None:
    await desk.store.publish_tasks([OWN])
    desk.store.is_away = True
    (transition,) = await desk.ask(misfit())
    assert isinstance(transition, GiveBack)
    desk.store.is_away = False
    assert await desk.ask(misfit()) == [Bury(FAILURE)]


def test_only_arguments_that_don_t_fit_make_a_misfit() -> None:
    fitting = misfit(args_json='{"name":"Ada"}')
    assert is_misfit(misfit(), REFUSED)
    assert not is_misfit(fitting, REFUSED), "its result could not be stored, or it has enqueued nonsense itself"
    assert not is_misfit(misfit(), Completed(None))
