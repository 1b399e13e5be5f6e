"""Enqueuing one job at a time: each waits for the disk alone."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.app import make_app, opened_app
from benchmarks.limit import Limit
from benchmarks.rounds import Sample, Stopwatch, alternate, percentiles
from benchmarks.sizes import Sizes
from benchmarks.table import Row, rows

_FIGURES = ("jobs/s", "p50 ms", "p99 ms")


def measure(sizes: Sizes, folder: Path) -> list[Row]:
    jobs = sizes.single_jobs
    sides = {
        "ours": lambda path: asyncio.run(_await_each(path, jobs)),
        "sync": lambda path: _call_each(path, jobs),
        "limit": lambda path: _limit(path, jobs),
    }
    figures = alternate(sides, sizes.rounds, folder)
    sync = {"ours": figures["sync"], "limit": figures["limit"]}
    return [
        *rows("enqueue one at a time, await", figures, _FIGURES),
        *rows("enqueue one at a time, sync", sync, _FIGURES),
    ]


async def _await_each(path: Path, jobs: int) -> Sample:
    waits: list[float] = []
    async with opened_app(path) as (_, task):
        with Stopwatch() as watch:
            for number in range(jobs):
                started = time.perf_counter()
                await task.aenqueue(number)
                waits.append(time.perf_counter() - started)
    return watch.rate(jobs) | percentiles(waits)


def _call_each(path: Path, jobs: int) -> Sample:
    hf, task = make_app(path)
    task.enqueue(0)
    waits: list[float] = []
    with Stopwatch() as watch:
        for number in range(jobs):
            started = time.perf_counter()
            task.enqueue(number)
            waits.append(time.perf_counter() - started)
    hf.close()
    return watch.rate(jobs) | percentiles(waits)


def _limit(path: Path, jobs: int) -> Sample:
    limit = Limit(path)
    limit.enqueue([0])
    waits: list[float] = []
    with Stopwatch() as watch:
        for number in range(jobs):
            started = time.perf_counter()
            limit.enqueue([number])
            waits.append(time.perf_counter() - started)
    limit.close()
    return watch.rate(jobs) | percentiles(waits)
