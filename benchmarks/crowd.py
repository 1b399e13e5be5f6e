"""A hundred producers at once on one event loop: they share commits. The limit commits their hundred jobs at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.app import opened_app
from benchmarks.limit import Limit
from benchmarks.rounds import RATE, Sample, Stopwatch, alternate
from benchmarks.sizes import Sizes
from benchmarks.table import Row, rows
from holdfast import AsyncTask

PRODUCERS = 100
_GOAL = 20_000


def measure(sizes: Sizes, folder: Path) -> list[Row]:
    jobs = sizes.crowd_jobs
    sides = {
        "ours": lambda path: asyncio.run(_ours(path, jobs)),
        "limit": lambda path: _limit(path, jobs),
    }
    figures = alternate(sides, sizes.rounds, folder)
    rate, cost = rows(f"enqueue, {PRODUCERS} producers", figures, RATE)
    is_met = rate.ours.median >= _GOAL
    return [Row(rate.measurement, rate.figure, rate.ours, rate.limit, f">= {_GOAL:,}/s", is_met), cost]


async def produce(task: AsyncTask[[int], None], jobs: int) -> None:
    """Each producer waits for its job to be on disk before it makes the next one."""
    numbers = iter(range(jobs))

    async def producer() -> None:
        for number in numbers:
            await task.aenqueue(number)

    await asyncio.gather(*(producer() for _ in range(PRODUCERS)))


async def _ours(path: Path, jobs: int) -> Sample:
    async with opened_app(path) as (_, task):
        with Stopwatch() as watch:
            await produce(task, jobs)
    return watch.rate(jobs)


def _limit(path: Path, jobs: int) -> Sample:
    limit = Limit(path)
    limit.enqueue(range(PRODUCERS))
    with Stopwatch() as watch:
        for first in range(0, jobs, PRODUCERS):
            limit.enqueue(range(first, first + PRODUCERS))
    limit.close()
    return watch.rate(jobs)
