"""A hundred producers on an event loop that also computes: whoever writes must get a share of the interpreter.

Each turn of the loop computes for a millisecond. The limit runs in a thread of its own beside a main thread that
computes in the same way, so both sides fight the same fight for Python's lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.app import opened_app
from benchmarks.crowd import PRODUCERS, produce
from benchmarks.loop import run
from benchmarks.rounds import Side, alternate
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.stopwatch import Stopwatch
from benchmarks.table import Findings, rows

_COMPUTING = 0.001
_TO_OPEN = 10.0


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    jobs = sizes.busy_jobs
    sides: dict[str, Side] = {
        "ours": lambda site: run(_ours(site, jobs)),
        "limit": lambda site: _limit(site, jobs),
    }
    found = Findings()
    title = f"enqueue, {PRODUCERS} producers, loop computes 1 ms a turn"
    for store, figures in alternate(hosts, sides, sizes.rounds).items():
        found.rows.extend(rows(title, store, figures, ("jobs/s", "turns/s")))
    return found


def _compute() -> None:
    end = time.perf_counter() + _COMPUTING
    while time.perf_counter() < end:
        sum(range(50))


async def _ours(site: Site, jobs: int) -> Sample:
    turns = 0

    async def keep_busy() -> None:
        nonlocal turns
        while True:
            _compute()
            turns += 1
            await asyncio.sleep(0)

    async with opened_app(site.url) as (_, task):
        with Stopwatch(site) as watch:
            busy = asyncio.create_task(keep_busy())
            await produce(task, jobs)
            busy.cancel()
    return watch.rate(jobs) | {"turns/s": turns / watch.seconds}


def _limit(site: Site, jobs: int) -> Sample:
    is_open, is_over = threading.Event(), threading.Event()

    async def enqueue_all() -> None:
        limit = await site.open_limit()
        await limit.enqueue([0])
        is_open.set()
        for first in range(0, jobs, PRODUCERS):
            await limit.enqueue(range(first, first + PRODUCERS))
        is_over.set()
        await limit.close()

    turns = 0
    with ThreadPoolExecutor(1) as executor:
        enqueuing = executor.submit(lambda: run(enqueue_all()))
        is_open.wait(_TO_OPEN)
        with Stopwatch(site) as watch:
            while not is_over.is_set() and not enqueuing.done():
                _compute()
                turns += 1
                time.sleep(0)  # an event loop looks at its sockets here, which lets go of the lock just as briefly
        enqueuing.result()
    return watch.rate(jobs) | {"turns/s": turns / watch.seconds}
