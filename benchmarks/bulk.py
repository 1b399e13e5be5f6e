"""Bulk enqueuing: a thousand jobs a call.

PostgreSQL has a second reference: a bare insert from arrays into the shipped table, which no driver of another
language could call, and which decides nothing. The goal is a part of the limit, which calls the shipped function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from benchmarks.app import opened_app
from benchmarks.limits.postgres import PostgresLimit
from benchmarks.loop import run
from benchmarks.rounds import Side, alternate_by_host
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.stopwatch import RATE, Stopwatch
from benchmarks.table import Findings, at_least, rows

BATCH = 1_000
_GOAL = 0.7


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    jobs = sizes.bulk_jobs

    def sides_of(host: Host) -> dict[str, Side]:
        sides: dict[str, Side] = {
            "ours": lambda site: run(_ours(site, jobs)),
            "limit": lambda site: run(_limit(site, jobs)),
        }
        return sides | ({"bare": lambda site: run(_bare(site, jobs))} if host.name == "postgres" else {})

    found = Findings()
    for store, figures in alternate_by_host(hosts, sides_of, sizes.rounds).items():
        rate, *costs = rows(f"enqueue in bulk, {BATCH:,} a call", store, figures, RATE)
        found.rows.extend([at_least(rate, _GOAL), *costs])
        if "bare" in figures:
            found.rows.extend(rows("… beside a bare insert from arrays", store, figures, RATE, limit="bare"))
    return found


async def _ours(site: Site, jobs: int) -> Sample:
    async with opened_app(site.url) as (hf, task):
        await hf.aenqueue_many([task.call(number) for number in range(BATCH)])
        with Stopwatch(site) as watch:
            for first in range(0, jobs, BATCH):
                await hf.aenqueue_many([task.call(number) for number in range(first, first + BATCH)])
    return watch.rate(jobs)


async def _limit(site: Site, jobs: int) -> Sample:
    limit = await site.open_limit()
    sample = await _repeat(limit.enqueue, site, jobs)
    await limit.close()
    return sample


async def _bare(site: Site, jobs: int) -> Sample:
    limit = await PostgresLimit.open(site.url)
    sample = await _repeat(limit.insert, site, jobs)
    await limit.close()
    return sample


async def _repeat(enqueue: Callable[[Sequence[int]], Awaitable[None]], site: Site, jobs: int) -> Sample:
    await enqueue(range(BATCH))
    with Stopwatch(site) as watch:
        for first in range(0, jobs, BATCH):
            await enqueue(range(first, first + BATCH))
    return watch.rate(jobs)
