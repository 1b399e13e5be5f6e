"""Workers that die while their zombies still settle: a ledger of every answer, compared with what the database says.

Nothing is lost, nothing ends twice, and no at-most-once job is given out twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

from holdfast.job import ClaimedJob, Delivery, Failure, FailureKind, JobRecord, JobState
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition, Withdraw
from holdfast.store import LARGEST_BATCH, Held, Settled, Settlement
from holdfast.stores.postgres import PostgresStore
from tests.postgres.conftest import Opener
from tests.postgres.database import PATIENCE, Database, until
from tests.postgres.jobs import QUEUE, new, register

PRODUCERS, WORKERS, CALLS = 16, 8, 8
SOON = timedelta(milliseconds=5)
ERROR = Failure(FailureKind.ERROR, "ValueError", "no")
ENDS: list[Transition] = [
    *[Complete("1")] * 4,
    GiveBack(),
    GiveBack(SOON),
    GiveBack(SOON, is_charged=True, failure=ERROR),
    Bury(ERROR),
    Withdraw("not wanted"),
]
DELIVERIES = (Delivery.AT_LEAST_ONCE, Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE)
FINAL = {Complete: JobState.COMPLETED, Bury: JobState.DEAD, Withdraw: JobState.CANCELLED}


@dataclass
class Ledger:
    """What everybody was told."""

    enqueued: set[UUID] = field(default_factory=set)
    claimed: defaultdict[UUID, list[UUID]] = field(default_factory=lambda: defaultdict(list))
    """The tokens under which each job was given out."""
    ended: defaultdict[UUID, list[tuple[UUID, JobState]]] = field(default_factory=lambda: defaultdict(list))
    """Under which token somebody was told that it had ended, and how."""
    answers: Counter[Settled] = field(default_factory=Counter)
    cancelled: set[UUID] = field(default_factory=set)

    def settle(self, settlements: list[Settlement], answers: list[Settled]) -> None:
        self.answers.update(answers)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer is Settled.APPLIED and type(settlement.transition) in FINAL:
                self.ended[settlement.id].append((settlement.token, FINAL[type(settlement.transition)]))

    def check(self, job: JobRecord) -> None:
        ends = self.ended[job.id]
        assert job.state.is_final, job
        assert job.runs == len(self.claimed[job.id]), "a claim that nobody was told of"
        assert len(set(self.claimed[job.id])) == job.runs, "one token, two claims"
        assert len(ends) <= 1, "it ended twice"
        if job.delivery is Delivery.AT_MOST_ONCE:
            assert job.runs <= 1, "it was given out twice"
        if job.state is JobState.COMPLETED:
            assert ends == [(job.token, JobState.COMPLETED)], "somebody else completed it"
        elif job.state is JobState.CANCELLED:
            assert ends or job.id in self.cancelled
        else:
            assert ends or job.error_type in ("WorkerLost", "Interrupted"), "nobody knows why it is dead"


class Crew:
    """Some producers and workers, each of which uses one of these stores. Every worker dies sooner or later."""

    def __init__(self, stores: list[PostgresStore]) -> None:
        self.ledger = Ledger()
        self._stores = stores
        self._chance = random.Random(5)
        self._is_producing = True

    async def run(self) -> None:
        async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
            producers = [group.create_task(self._produce(self._store())) for _ in range(PRODUCERS)]
            for _ in range(WORKERS):
                group.create_task(self._work(self._store()))
            group.create_task(self._maintain(self._store()))
            await asyncio.gather(*producers)
            self._is_producing = False

    def _store(self) -> PostgresStore:
        return self._chance.choice(self._stores)

    async def _is_over(self, store: PostgresStore) -> bool:
        return not self._is_producing and len(await store.finished(list(self.ledger.enqueued))) == len(
            self.ledger.enqueued
        )

    async def _produce(self, store: PostgresStore) -> None:
        for _ in range(CALLS):
            jobs = [
                new(
                    delivery=self._chance.choice(
                        (Delivery.AT_LEAST_ONCE, Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE)
                    ),
                    delay=self._chance.choice((None, None, SOON)),
                    priority=self._chance.randint(4, 6),
                    max_attempts=1_000,
                )
                for _ in range(self._chance.randint(1, 6))
            ]
            self.ledger.enqueued |= {answer.id for answer in await store.enqueue(jobs)}
            if self._chance.random() < 0.2:
                unwanted = jobs[0].id
                self.ledger.cancelled.add(unwanted)
                await store.cancel([unwanted], "not wanted")

    async def _work(self, store: PostgresStore) -> None:
        worker = await register(store)
        while not await self._is_over(store):
            token = uuid4()
            jobs = await store.claim(worker, token, {QUEUE: 5})
            for job in jobs:
                self.ledger.claimed[job.id].append(token)
            if self._chance.random() < 0.15:
                # It is taken for dead, in one way or the other, and does not know it yet.
                await asyncio.gather(self._settle(store, jobs), self._bury(self._store(), worker))
                worker = await register(store)
            elif jobs and self._chance.random() < 0.1:
                # It is late for certain.
                await self._bury(self._store(), worker)
                await self._settle(store, jobs)
                worker = await register(store)
            else:
                await self._settle(store, jobs)
                await store.beat(worker, Held({}))

    async def _settle(self, store: PostgresStore, jobs: list[ClaimedJob]) -> None:
        settlements = [Settlement(job.id, job.token, self._end(job)) for job in jobs]
        self._chance.shuffle(settlements)
        self.ledger.settle(settlements, await store.settle(settlements))

    def _end(self, job: ClaimedJob) -> Transition:
        end = self._chance.choice(ENDS) if job.runs < 4 else Complete()
        # An at-most-once job is not given back once it has started: lifecycle.decide sees to it.
        return Bury(ERROR) if isinstance(end, GiveBack) and job.delivery is Delivery.AT_MOST_ONCE else end

    async def _bury(self, store: PostgresStore, worker: UUID) -> None:
        match self._chance.randint(0, 2):
            case 0:
                await store.bury_worker(worker)
            case 1:
                await store.depart(worker)
            case _:
                beats = {sighting.worker: sighting.beat for sighting in await store.sightings()}
                await store.rescue({worker: beats[worker]})

    async def _maintain(self, store: PostgresStore) -> None:
        while not await self._is_over(store):
            await store.tick()
            await store.rescue({})
            await store.prune()


async def test_the_ledger_agrees_with_the_database(database: Database, make_store: Opener) -> None:
    stores = [make_store() for _ in range(3)]
    crew = Crew(stores)
    await crew.run()
    ledger = crew.ledger
    assert len(ledger.enqueued) < LARGEST_BATCH
    jobs = await stores[0].get(sorted(ledger.enqueued))
    assert {job.id for job in jobs} == ledger.enqueued == set(await database.ids())
    for job in jobs:
        ledger.check(job)
    assert ledger.answers[Settled.STALE] > 0, "no zombie was ever late, so nothing is tested here"
    assert ledger.answers[Settled.ALREADY] == 0
    assert await database.stuck() == []
    await until(database.is_quiet)
