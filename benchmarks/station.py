"""One process among several: producers, claimers and a caretaker, each with a store of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.app import QUEUE, TASK
from benchmarks.loop import run
from benchmarks.site import Site
from benchmarks.worker import IdleWorker, registered_worker
from holdfast.codec import fingerprint
from holdfast.ids import Ids
from holdfast.job import ClaimedJob, NewJob
from holdfast.lifecycle import Complete, GiveBack
from holdfast.store import Settled, Settlement

Step = Callable[[IdleWorker], Coroutine[Any, Any, None]]

_LARGEST_BATCH = 50
_KEYS_AT_ONCE = 40
_NEW_KEYS_EVERY = 0.02
_PART_WITH_KEYS = 0.3
_PART_GIVEN_BACK = 0.05
_SLOTS = 100
_CARE_EVERY = 0.05
_NOTHING_TO_DO = 0.001
_ARGUMENTS = '{"number":1}'
_FINGERPRINT = fingerprint(_ARGUMENTS)


@dataclass
class Report:
    enqueued: int = 0
    completed: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def work(site: Site, seconds: float, producers: int, claimers: int, barrier: Barrier) -> Report:
    return run(_work(site, seconds, producers, claimers, barrier))


async def _work(site: Site, seconds: float, producers: int, claimers: int, barrier: Barrier) -> Report:
    report = Report()
    ids = Ids()

    async def produce(worker: IdleWorker) -> None:
        answers = await worker.store.enqueue([_new_job(ids) for _ in range(random.randint(1, _LARGEST_BATCH))])
        report.enqueued += sum(not answer.is_existing for answer in answers)

    async def claim(worker: IdleWorker) -> None:
        jobs = await worker.claim(random.randint(1, _SLOTS))
        settlements = [_settlement(job) for job in jobs]
        answers = await worker.store.settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer is not Settled.APPLIED:
                report.errors[f"settlement was {answer}"] += 1
            elif isinstance(settlement.transition, Complete):
                report.completed += 1
        if not jobs:
            await asyncio.sleep(_NOTHING_TO_DO)

    async def take_care(worker: IdleWorker) -> None:
        await worker.store.tick()
        await worker.store.rescue({})
        await worker.store.prune()
        await asyncio.sleep(_CARE_EVERY)

    steps: list[Step] = [*[produce] * producers, *[claim] * claimers, take_care]
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(registered_worker(site)) for _ in steps]
        await asyncio.to_thread(barrier.wait)
        end = time.monotonic() + seconds
        await asyncio.gather(*(_repeat(step, worker, end, report) for step, worker in zip(steps, workers, strict=True)))
    return report


async def _repeat(step: Step, worker: IdleWorker, end: float, report: Report) -> None:
    while time.monotonic() < end:
        try:
            await step(worker)
        except Exception as error:
            report.errors[f"{type(error).__name__}: {error}"[:200]] += 1


def _new_job(ids: Ids) -> NewJob:
    if random.random() >= _PART_WITH_KEYS:
        return NewJob(ids.make(), TASK, QUEUE, _ARGUMENTS)
    moment = int(time.time() / _NEW_KEYS_EVERY)
    key = f"{moment} {random.randrange(_KEYS_AT_ONCE)}"
    return NewJob(ids.make(), TASK, QUEUE, _ARGUMENTS, idempotency_key=key, fingerprint=_FINGERPRINT)


def _settlement(job: ClaimedJob) -> Settlement:
    is_given_back = random.random() < _PART_GIVEN_BACK
    return Settlement(job.id, job.token, GiveBack() if is_given_back else Complete("null"), job.is_keyed)
