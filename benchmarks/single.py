"""Enqueuing one job at a time: each waits for the disk alone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.app import make_app, opened_app
from benchmarks.figures import percentiles
from benchmarks.loop import run
from benchmarks.rounds import Side, alternate
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.stopwatch import Stopwatch
from benchmarks.table import Findings, rows

_FIGURES = ("jobs/s", "p50 ms", "p99 ms")


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    jobs = sizes.single_jobs
    sides: dict[str, Side] = {
        "ours": lambda site: run(_await_each(site, jobs)),
        "sync": lambda site: _call_each(site, jobs),
        "limit": lambda site: run(_limit(site, jobs)),
    }
    found = Findings()
    for store, figures in alternate(hosts, sides, sizes.rounds).items():
        found.rows.extend(rows("enqueue one at a time, await", store, figures, _FIGURES))
        found.rows.extend(rows("enqueue one at a time, sync", store, figures, _FIGURES, ours="sync"))
    return found


async def _await_each(site: Site, jobs: int) -> Sample:
    waits: list[float] = []
    async with opened_app(site.url) as (_, task):
        with Stopwatch(site) as watch:
            for number in range(jobs):
                started = time.perf_counter()
                await task.aenqueue(number)
                waits.append(time.perf_counter() - started)
    return watch.rate(jobs) | percentiles(waits)


def _call_each(site: Site, jobs: int) -> Sample:
    hf, task = make_app(site.url)
    task.enqueue(0)
    waits: list[float] = []
    with Stopwatch(site) as watch:
        for number in range(jobs):
            started = time.perf_counter()
            task.enqueue(number)
            waits.append(time.perf_counter() - started)
    hf.close()
    return watch.rate(jobs) | percentiles(waits)


async def _limit(site: Site, jobs: int) -> Sample:
    limit = await site.open_limit()
    await limit.enqueue([0])
    waits: list[float] = []
    with Stopwatch(site) as watch:
        for number in range(jobs):
            started = time.perf_counter()
            await limit.enqueue([number])
            waits.append(time.perf_counter() - started)
    await limit.close()
    return watch.rate(jobs) | percentiles(waits)
