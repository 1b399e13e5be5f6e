"""Processes that claim jobs under limits, one after the other, as fast as they can."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from uuid import UUID, uuid4

from holdfast.job import ClaimedJob, Failure, FailureKind, JobState
from holdfast.lifecycle import Complete, GiveBack, Transition
from holdfast.store import Filter, NewWorker, Settled, Settlement, Store
from tests.crash.line import Line
from tests.crash.scheduling import open_at
from tests.worker.history import History

_FAILURE = Failure(FailureKind.ERROR, "Planned", "This was to fail.")
_UNFINISHED = Filter(states=frozenset({JobState.PENDING, JobState.RETRYING, JobState.ACTIVE}))


async def claim_in_lines(line: Line, url: str, history: str, worker: str, seed: str) -> None:
    """Until nothing is left. Writes down what it has claimed, and what it is about to let go of."""
    store, notes, chance = open_at(url, None), History(history), random.Random(seed)
    await store.register(NewWorker(UUID(worker), "claim"))
    line.say("ready")
    held: list[ClaimedJob] = []
    behind: dict[UUID, ClaimedJob] = {}
    """Those that may start when another one is completed."""

    def start(job: ClaimedJob) -> None:
        notes.write("start", job.id, attempt=job.attempt)
        held.append(job)

    while True:
        demand = {"default": chance.randint(1, 6)}
        claimed = await store.claim(UUID(worker), uuid4(), demand, None, chance.randint(0, 6))
        for job in claimed:
            if job.behind is None:
                start(job)
            else:
                behind[job.behind] = job
        chance.shuffle(held)
        number = chance.randint(1, 4)
        leaving, held = held[:number], held[number:]
        ends: list[tuple[ClaimedJob, Transition]] = [(job, _end(chance, job)) for job in leaving]
        for job, end in ends:
            notes.write("end", job.id, attempt=job.attempt, note="" if isinstance(end, Complete) else "Planned")
        if ends:
            answers = await store.settle([Settlement(job.id, job.token, end) for job, end in ends])
            assert answers == [Settled.APPLIED] * len(answers), answers
        for job, end in ends:
            if not isinstance(end, Complete):
                await _give_back(store, chance, job, behind)
            elif follower := behind.pop(job.id, None):
                start(follower)
        if not claimed and not held:
            await store.tick()
            if await store.count(_UNFINISHED) == 0:
                break
            await asyncio.sleep(chance.uniform(0, 0.01))
    await store.close()
    line.say("finished")


async def _give_back(store: Store, chance: random.Random, job: ClaimedJob, behind: dict[UUID, ClaimedJob]) -> None:
    """All that are behind a job, in any order, together or one by one."""
    train: list[ClaimedJob] = []
    while follower := behind.pop(train[-1].id if train else job.id, None):
        train.append(follower)
    chance.shuffle(train)
    size = chance.randint(1, max(1, len(train)))
    for first in range(0, len(train), size):
        await store.settle([Settlement(each.id, each.token, GiveBack()) for each in train[first : first + size]])


def _end(chance: random.Random, job: ClaimedJob) -> Transition:
    if job.attempt < 3 and chance.random() < 0.2:
        return GiveBack(chance.choice([timedelta(0), timedelta(milliseconds=5)]), is_charged=True, failure=_FAILURE)
    return Complete()
