"""Claim and settle without running anything, until the queue is empty."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.database import fill
from benchmarks.limit import Limit
from benchmarks.rounds import RATE, Sample, Side, Stopwatch, alternate
from benchmarks.sizes import Sizes
from benchmarks.table import Row, at_least, rows
from benchmarks.worker import registered_worker

BATCHES = (200, 1_000)
_GOAL = 0.7


def measure(sizes: Sizes, folder: Path) -> list[Row]:
    return [row for batch in BATCHES for row in _measure(batch, sizes, folder)]


def _measure(batch: int, sizes: Sizes, folder: Path) -> list[Row]:
    sides: dict[str, Side] = {
        "ours": lambda path: asyncio.run(_ours(_filled(path, sizes.drain_jobs), batch)),
        "limit": lambda path: _limit(_filled(path, sizes.drain_jobs), batch),
    }
    figures = alternate(sides, sizes.rounds, folder)
    rate, cost = rows(f"claim + settle, {batch:,} at a time", figures, RATE)
    return [at_least(rate, _GOAL), cost]


def _filled(path: Path, jobs: int) -> Path:
    fill(path, ready=jobs)
    return path


async def _ours(path: Path, batch: int) -> Sample:
    drained = 0
    async with registered_worker(path) as worker:
        await worker.settle(await worker.claim(batch))
        with Stopwatch() as watch:
            while jobs := await worker.claim(batch):
                await worker.settle(jobs)
                drained += len(jobs)
    return watch.rate(drained)


def _limit(path: Path, batch: int) -> Sample:
    drained = 0
    limit = Limit(path)
    limit.settle(*limit.claim(batch))
    with Stopwatch() as watch:
        while True:
            token, jobs = limit.claim(batch)
            if not jobs:
                break
            limit.settle(token, jobs)
            drained += len(jobs)
    limit.close()
    return watch.rate(drained)
