"""What one of several processes on one database does, until its time is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.synchronize import Barrier

from benchmarks.loop import run
from benchmarks.site import Site
from benchmarks.worker import registered_worker

Step = Callable[[], Awaitable[int]]

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


def work(role: Role, site: Site, seconds: float, is_limit: bool, barrier: Barrier) -> Report:
    return run(_work(role, site, seconds, is_limit, barrier))


async def _work(role: Role, site: Site, seconds: float, is_limit: bool, barrier: Barrier) -> Report:
    report = Report(role)
    async with (_limit if is_limit else _ours)(role, site) as step:
        barrier.wait()
        end = time.monotonic() + seconds
        while (started := time.monotonic()) < end:
            jobs = await step()
            report.waits.append(time.monotonic() - started)
            report.jobs += jobs
            await asyncio.sleep(_pause(role, jobs))
    return report


@asynccontextmanager
async def _ours(role: Role, site: Site) -> AsyncIterator[Step]:
    async with registered_worker(site) as worker:

        async def enqueue() -> int:
            count = _size(role)
            await worker.enqueue(count)
            return count

        async def drain() -> int:
            jobs = await worker.claim(_DRAIN_BATCH)
            await worker.settle(jobs)
            return len(jobs)

        yield drain if role is Role.DRAIN else enqueue


@asynccontextmanager
async def _limit(role: Role, site: Site) -> AsyncIterator[Step]:
    limit = await site.open_limit()

    async def enqueue() -> int:
        count = _size(role)
        await limit.enqueue(range(count))
        return count

    async def drain() -> int:
        claim = await limit.claim(_DRAIN_BATCH)
        await limit.settle(claim)
        return len(claim.jobs)

    yield drain if role is Role.DRAIN else enqueue
    await limit.close()


def _size(role: Role) -> int:
    return _BULK_BATCH if role is Role.BULK else 1


def _pause(role: Role, jobs: int) -> float:
    if role is Role.SINGLE:
        return _SINGLE_EVERY
    return 0 if jobs else _NOTHING_TO_DO
