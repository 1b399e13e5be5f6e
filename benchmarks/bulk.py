"""Bulk enqueuing: a thousand jobs a call."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.app import opened_app
from benchmarks.limit import Limit
from benchmarks.rounds import RATE, Sample, Stopwatch, alternate
from benchmarks.sizes import Sizes
from benchmarks.table import Row, at_least, rows

BATCH = 1_000
_GOAL = 0.7


def measure(sizes: Sizes, folder: Path) -> list[Row]:
    jobs = sizes.bulk_jobs
    sides = {
        "ours": lambda path: asyncio.run(_ours(path, jobs)),
        "limit": lambda path: _limit(path, jobs),
    }
    figures = alternate(sides, sizes.rounds, folder)
    rate, cost = rows(f"enqueue in bulk, {BATCH:,} a call", figures, RATE)
    return [at_least(rate, _GOAL), cost]


async def _ours(path: Path, jobs: int) -> Sample:
    async with opened_app(path) as (hf, task):
        await hf.aenqueue_many([task.call(number) for number in range(BATCH)])
        with Stopwatch() as watch:
            for first in range(0, jobs, BATCH):
                await hf.aenqueue_many([task.call(number) for number in range(first, first + BATCH)])
    return watch.rate(jobs)


def _limit(path: Path, jobs: int) -> Sample:
    limit = Limit(path)
    limit.enqueue(range(BATCH))
    with Stopwatch() as watch:
        for first in range(0, jobs, BATCH):
            limit.enqueue(range(first, first + BATCH))
    limit.close()
    return watch.rate(jobs)
