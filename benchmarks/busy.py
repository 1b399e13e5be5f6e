"""A hundred producers on an event loop that also computes: the writer's thread must get its share of the interpreter.

Each turn of the loop computes for a millisecond. The limit runs in a thread of its own beside a main thread that
computes in the same way, so both sides fight the same fight for Python's lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from benchmarks.app import opened_app
from benchmarks.crowd import PRODUCERS, produce
from benchmarks.limit import Limit
from benchmarks.rounds import Sample, Stopwatch, alternate
from benchmarks.sizes import Sizes
from benchmarks.table import Row, rows

_COMPUTING = 0.001


def measure(sizes: Sizes, folder: Path) -> list[Row]:
    jobs = sizes.busy_jobs
    sides = {
        "ours": lambda path: asyncio.run(_ours(path, jobs)),
        "limit": lambda path: _limit(path, jobs),
    }
    figures = alternate(sides, sizes.rounds, folder)
    return rows(f"enqueue, {PRODUCERS} producers, loop computes 1 ms a turn", figures, ("jobs/s", "turns/s"))


def _compute() -> None:
    end = time.perf_counter() + _COMPUTING
    while time.perf_counter() < end:
        sum(range(50))


async def _ours(path: Path, jobs: int) -> Sample:
    turns = 0

    async def keep_busy() -> None:
        nonlocal turns
        while True:
            _compute()
            turns += 1
            await asyncio.sleep(0)

    async with opened_app(path) as (_, task):
        with Stopwatch() as watch:
            busy = asyncio.create_task(keep_busy())
            await produce(task, jobs)
            busy.cancel()
    return watch.rate(jobs) | {"turns/s": turns / watch.seconds}


def _limit(path: Path, jobs: int) -> Sample:
    is_over = threading.Event()

    def enqueue_all() -> None:
        limit = Limit(path)
        for first in range(0, jobs, PRODUCERS):
            limit.enqueue(range(first, first + PRODUCERS))
        is_over.set()
        limit.close()

    turns = 0
    thread = threading.Thread(target=enqueue_all)
    with Stopwatch() as watch:
        thread.start()
        while not is_over.is_set():
            _compute()
            turns += 1
            time.sleep(0)  # an event loop looks at its sockets here, which lets go of the lock just as briefly
    thread.join()
    return watch.rate(jobs) | {"turns/s": turns / watch.seconds}
