"""A hundred producers at once on one event loop: they share commits. The limit commits their hundred jobs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.app import opened_app
from benchmarks.loop import run
from benchmarks.rounds import Side, alternate
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.stopwatch import RATE, Stopwatch
from benchmarks.table import Findings, rows
from holdfast import AsyncTask

PRODUCERS = 100
_GOAL = 20_000


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    jobs = sizes.crowd_jobs
    sides: dict[str, Side] = {
        "ours": lambda site: run(_ours(site, jobs)),
        "limit": lambda site: run(_limit(site, jobs)),
    }
    found = Findings()
    for store, figures in alternate(hosts, sides, sizes.rounds).items():
        rate, *costs = rows(f"enqueue, {PRODUCERS} producers", store, figures, RATE)
        found.rows.extend([rate.with_goal(f">= {_GOAL:,}/s", rate.ours.median >= _GOAL), *costs])
    return found


async def produce(task: AsyncTask[[int], None], jobs: int) -> None:
    """Each producer waits for its job to be on disk before it makes the next one."""
    numbers = iter(range(jobs))

    async def producer() -> None:
        for number in numbers:
            await task.aenqueue(number)

    await asyncio.gather(*(producer() for _ in range(PRODUCERS)))


async def _ours(site: Site, jobs: int) -> Sample:
    async with opened_app(site.url) as (_, task):
        with Stopwatch(site) as watch:
            await produce(task, jobs)
    return watch.rate(jobs)


async def _limit(site: Site, jobs: int) -> Sample:
    limit = await site.open_limit()
    await limit.enqueue(range(PRODUCERS))
    with Stopwatch(site) as watch:
        for first in range(0, jobs, PRODUCERS):
            await limit.enqueue(range(first, first + PRODUCERS))
    await limit.close()
    return watch.rate(jobs)
