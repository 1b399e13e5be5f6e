"""What one of several processes on one file does, until its time is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.limit import QUEUE, TASK, Limit
from benchmarks.worker import IdleWorker, registered_worker
from holdfast.ids import Ids
from holdfast.job import NewJob

_DRAIN_BATCH = 200
_BULK_BATCH = 1_000
_SINGLE_EVERY = 0.005
_NOTHING_TO_DO = 0.001


class Role(Enum):
    DRAIN = "drain"
    BULK = "bulk"
    SINGLE = "single"


@dataclass
class Report:
    """How many jobs a process drained or enqueued, and how long each of its steps took."""

    role: Role
    jobs: int = 0
    waits: list[float] = field(default_factory=list)


def run(role: Role, path: Path, seconds: float, is_limit: bool, barrier: Barrier, answer: Connection) -> None:
    report = Report(role)
    if is_limit:
        _limit(report, path, seconds, barrier)
    else:
        asyncio.run(_ours(report, path, seconds, barrier))
    answer.send(report)


async def _ours(report: Report, path: Path, seconds: float, barrier: Barrier) -> None:
    async with registered_worker(path) as worker:
        step = _step(report.role, worker)
        barrier.wait()
        end = time.monotonic() + seconds
        while (started := time.monotonic()) < end:
            jobs = await step()
            report.waits.append(time.monotonic() - started)
            report.jobs += jobs
            await asyncio.sleep(_pause(report.role, jobs))


def _step(role: Role, worker: IdleWorker) -> Callable[[], Awaitable[int]]:
    ids = Ids()

    async def enqueue(count: int) -> int:
        await worker.store.enqueue([NewJob(id, TASK, QUEUE, '{"number":1}') for id in ids.make_many(count)])
        return count

    async def drain() -> int:
        jobs = await worker.claim(_DRAIN_BATCH)
        await worker.settle(jobs)
        return len(jobs)

    match role:
        case Role.DRAIN:
            return drain
        case Role.BULK:
            return lambda: enqueue(_BULK_BATCH)
        case Role.SINGLE:
            return lambda: enqueue(1)


def _limit(report: Report, path: Path, seconds: float, barrier: Barrier) -> None:
    limit = Limit(path)
    barrier.wait()
    end = time.monotonic() + seconds
    while (started := time.monotonic()) < end:
        jobs = 0
        match report.role:
            case Role.DRAIN:
                token, claimed = limit.claim(_DRAIN_BATCH)
                limit.settle(token, claimed)
                jobs = len(claimed)
            case Role.BULK:
                limit.enqueue(range(_BULK_BATCH))
                jobs = _BULK_BATCH
            case Role.SINGLE:
                limit.enqueue([1])
                jobs = 1
        report.waits.append(time.monotonic() - started)
        report.jobs += jobs
        time.sleep(_pause(report.role, jobs))
    limit.close()


def _pause(role: Role, jobs: int) -> float:
    if role is Role.SINGLE:
        return _SINGLE_EVERY
    return 0 if jobs else _NOTHING_TO_DO
