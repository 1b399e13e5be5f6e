"""Claim and settle without running anything, until the queue is empty."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.loop import run
from benchmarks.rounds import Side, alternate
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.stopwatch import RATE, Stopwatch
from benchmarks.table import Findings, at_least, rows
from benchmarks.worker import registered_worker

BATCHES = (200, 1_000)
_GOAL = 0.7


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    found = Findings()
    for batch in BATCHES:
        for store, figures in alternate(hosts, _sides(batch, sizes.drain_jobs), sizes.rounds).items():
            rate, *costs = rows(f"claim + settle, {batch:,} at a time", store, figures, RATE)
            found.rows.extend([at_least(rate, _GOAL), *costs])
    return found


def _sides(batch: int, jobs: int) -> dict[str, Side]:
    return {
        "ours": lambda site: run(ours(site, jobs, batch)),
        "limit": lambda site: run(limit(site, jobs, batch)),
    }


async def ours(site: Site, jobs: int, batch: int) -> Sample:
    drained = 0
    await site.fill(ready=jobs)
    async with registered_worker(site) as worker:
        await worker.settle(await worker.claim(batch))
        with Stopwatch(site) as watch:
            while claimed := await worker.claim(batch):
                await worker.settle(claimed)
                drained += len(claimed)
    return watch.rate(drained)


async def limit(site: Site, jobs: int, batch: int) -> Sample:
    drained = 0
    await site.fill(ready=jobs)
    limit = await site.open_limit()
    await limit.settle(await limit.claim(batch))
    with Stopwatch(site) as watch:
        while (claim := await limit.claim(batch)).jobs:
            await limit.settle(claim)
            drained += len(claim.jobs)
    await limit.close()
    return watch.rate(drained)
