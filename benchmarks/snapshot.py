"""Claim and settle while somebody keeps an old transaction open, so that PostgreSQL can clean up nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from benchmarks.loop import run
from benchmarks.rounds import Side, alternate
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.stopwatch import Stopwatch
from benchmarks.table import Findings, rows
from benchmarks.worker import IdleWorker, registered_worker
from holdfast.store import Held

_BATCH = 200
_FIFTHS = 5
_GOAL = 0.6
_BEATS = 5


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    jobs = sizes.snapshot_jobs
    sides: dict[str, Side] = {
        "free": lambda site: run(_ours(site, jobs, is_held=False)),
        "held": lambda site: run(_ours(site, jobs, is_held=True)),
        "limit": lambda site: run(_limit(site, jobs)),
    }
    found = Findings()
    title = "claim + settle, a snapshot held open"
    for store, figures in alternate(hosts, sides, sizes.rounds).items():
        held, free = figures["held"], figures["free"]
        kept = held["jobs/s"].over(free["jobs/s"]).median
        (rate,) = rows(title, store, figures, ("jobs/s",), ours="held")
        found.rows.append(rate.with_goal(f">= {_GOAL:.0%} of without, is {kept:.0%}", kept >= _GOAL))
        found.rows.extend(rows(title, store, figures, ("beat ms",), ours="held"))
        without = {"free": free}
        found.rows.extend(rows("claim + settle, no snapshot", store, without, ("jobs/s", "beat ms"), ours="free"))
        for side, taken in (("held", held), ("free", free)):
            fifths = "  ".join(f"{taken[_fifth(number)].median:,.0f}" for number in range(_FIFTHS))
            found.notes.append(f"snapshot {side}, {store}, jobs/s by fifths of the jobs: {fifths}")
    return found


def _fifth(number: int) -> str:
    return f"jobs/s in fifth {number + 1}"


async def _ours(site: Site, jobs: int, *, is_held: bool) -> Sample:
    fifths: Sample = {}
    await site.fill(ready=jobs)
    async with registered_worker(site) as worker, _snapshot(site, is_held):
        with Stopwatch(site) as watch:
            for number in range(_FIFTHS):
                started, drained = time.perf_counter(), 0
                while drained < jobs // _FIFTHS and (claimed := await worker.claim(_BATCH)):
                    await worker.settle(claimed)
                    drained += len(claimed)
                fifths[_fifth(number)] = drained / (time.perf_counter() - started)
        return watch.rate(jobs) | fifths | {"beat ms": await _beat(worker)}


async def _limit(site: Site, jobs: int) -> Sample:
    await site.fill(ready=jobs)
    limit = await site.open_limit()
    async with _snapshot(site, is_held=True):
        with Stopwatch(site) as watch:
            while (claim := await limit.claim(_BATCH)).jobs:
                await limit.settle(claim)
    await limit.close()
    return watch.rate(jobs)


async def _beat(worker: IdleWorker) -> float:
    """A heartbeat compares what a worker holds, which is nothing by now, whatever it held before."""
    waits = []
    for _ in range(_BEATS):
        started = time.perf_counter()
        await worker.store.beat(worker.id, Held({}))
        waits.append(time.perf_counter() - started)
    return statistics.median(waits) * 1e3


@asynccontextmanager
async def _snapshot(site: Site, is_held: bool) -> AsyncIterator[None]:
    if not is_held:
        yield
        return
    connection = await asyncpg.connect(site.url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.fetchval("select count(*) from holdfast.workers")
            yield
    finally:
        await connection.close()
