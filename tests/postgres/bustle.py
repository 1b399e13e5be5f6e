"""Everybody at once: producers, workers, people and maintenance. As a program, it is the second process of a test."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID, uuid4

from holdfast.errors import QueueFull
from holdfast.job import Failure, FailureKind
from holdfast.lifecycle import Bury, Complete, GiveBack, Transition
from holdfast.store import Filter, Held, Settled, Settlement
from holdfast.stores.postgres import PostgresStore
from tests.postgres.database import PATIENCE
from tests.postgres.jobs import QUEUE, new, register

PRODUCERS = 16
CLAIMERS = 8
CALLS = 25
"""Of each producer."""
ERROR = Failure(FailureKind.ERROR, "ValueError", "no")
ENDS: tuple[Transition, ...] = (*[Complete("1")] * 6, Bury(ERROR), GiveBack(is_charged=True, failure=ERROR), GiveBack())


class Bustle:
    """Producers, claimers and all the others. An error that reaches any of them ends the test."""

    def __init__(self, stores: list[PostgresStore], seed: int, *, with_people: bool = True) -> None:
        self._stores = stores
        self._with_people = with_people
        self._random = random.Random(seed)
        self.enqueued: set[UUID] = set()
        self.settled: Counter[Settled] = Counter()
        self._producing = PRODUCERS
        self._is_over = False

    async def run(self) -> None:
        async with asyncio.timeout(2 * PATIENCE), asyncio.TaskGroup() as group:
            producers = [group.create_task(self._produce(self._store(n), n)) for n in range(PRODUCERS)]
            claimers = [group.create_task(self._work(self._store(n))) for n in range(CLAIMERS)]
            for verb in (self._cancel, self._retry, self._maintain, self._look) if self._with_people else ():
                group.create_task(self._keep_on(verb))
            await asyncio.gather(*producers)
            self._producing = 0
            await asyncio.gather(*claimers)
            self._is_over = True

    def _store(self, number: int) -> PostgresStore:
        return self._stores[number % len(self._stores)]

    async def _produce(self, store: PostgresStore, number: int) -> None:
        for call in range(CALLS):
            jobs = [new(queue=f"{QUEUE}-{n % 2}", priority=n % 3) for n in range(self._random.randint(1, 8))]
            if call % 3 == 0:  # keys that the others use too, in any order
                keys = self._random.sample(range(12), len(jobs))
                jobs = [new(queue=f"{QUEUE}-0", unique_key=f"shared-{key}") for key in keys]
            with suppress(QueueFull):
                answers = await store.enqueue(jobs)
                self.enqueued |= {answer.id for answer in answers}

    async def _work(self, store: PostgresStore) -> None:
        worker = await register(store)
        while True:
            claimed = await store.claim(worker, uuid4(), {f"{QUEUE}-0": 20, f"{QUEUE}-1": 20})
            self._random.shuffle(claimed)
            # A job that has been tried often enough is completed, so that this comes to an end.
            ends = [self._random.choice(ENDS) if job.runs < 4 else Complete() for job in claimed]
            settlements = [Settlement(job.id, job.token, end) for job, end in zip(claimed, ends, strict=True)]
            self.settled.update(await store.settle(settlements))
            await store.beat(worker, Held({}))
            if not claimed and not self._producing:
                return

    async def _keep_on(self, verb: Callable[[PostgresStore], Awaitable[object]]) -> None:
        while not self._is_over:
            await verb(self._random.choice(self._stores))
            await asyncio.sleep(0)

    def _some(self) -> list[UUID]:
        return self._random.sample(sorted(self.enqueued), min(20, len(self.enqueued)))

    async def _cancel(self, store: PostgresStore) -> None:
        await store.cancel(self._some()[:3], "not wanted")

    async def _retry(self, store: PostgresStore) -> None:
        if self._producing:
            await store.retry(self._some())

    async def _maintain(self, store: PostgresStore) -> None:
        await store.tick()
        await store.rescue({})
        await store.prune()

    async def _look(self, store: PostgresStore) -> None:
        await store.page(Filter(queue=f"{QUEUE}-0"))
        await store.queues()
        await store.sightings()


async def drain(store: PostgresStore) -> None:
    """Complete what a person's last retry has left."""
    worker = await register(store)
    while claimed := await store.claim(worker, uuid4(), {f"{QUEUE}-0": 1000, f"{QUEUE}-1": 1000}):
        await store.settle([Settlement(job.id, job.token, Complete()) for job in claimed])


async def main(url: str) -> None:
    store = PostgresStore(url)
    try:
        await Bustle([store], seed=2).run()
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
