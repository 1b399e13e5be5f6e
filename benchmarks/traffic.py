"""Jobs under limits beside plain ones: from enqueue to settle, with many keys and limits that stop nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import benchmarks.jobs
from benchmarks import throttled
from benchmarks.app import BOUND, QUEUE
from benchmarks.loop import run
from benchmarks.rounds import Side, alternate
from benchmarks.shift import running_worker, span_of, wait_until_done
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.stopwatch import RATE, Stopwatch
from benchmarks.table import Findings, at_least, rows
from benchmarks.worker import registered_worker
from holdfast import Holdfast, Limit, Queue, Rate
from holdfast.options import TaskOptions

KEYS: Final = (100, 1_000)
KINDS: Final[dict[str, TaskOptions]] = {
    "plain": {},
    "rate": {"rate": Rate(1_000_000, "1m", "{tenant}")},
    "limit": {"limit": Limit(1_000, "{tenant}")},
    "order": {"order": "{tenant}"},
    "fair": {"fair": "{tenant}"},
}
_BATCH = 1_000
_SLOTS = 200
_BEHIND = _SLOTS * 7 // 8
"""Of jobs in an order, so many are claimed behind others: a worker asks for more of them than that."""
_GOAL = 0.4


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    found = Findings()
    for keys in KEYS:
        sides = {kind: _side(options, keys, sizes.traffic_jobs) for kind, options in KINDS.items()}
        for store, figures in alternate(hosts, sides, sizes.rounds).items():
            for kind in list(KINDS)[1:]:
                title = f"enqueue to settle, {kind}, {keys:,} keys, beside plain"
                rate, *costs = rows(title, store, figures, RATE, ours=kind, limit="plain")
                found.rows.extend([at_least(rate, _GOAL), *costs])
    for keys in KEYS:
        sides = {kind: _through_the_worker(kind, keys, sizes.traffic_jobs) for kind in KINDS}
        for store, figures in alternate(hosts, sides, sizes.process_rounds).items():
            for kind in list(KINDS)[1:]:
                title = f"enqueue to settle by the worker, {kind}, {keys:,} keys, beside plain"
                (rate,) = rows(title, store, figures, ["jobs/s"], ours=kind, limit="plain")
                found.rows.append(at_least(rate, _GOAL))
    throttled_found = throttled.measure(sizes, hosts)
    found.rows.extend(throttled_found.rows)
    return found


def _side(options: TaskOptions, keys: int, jobs: int) -> Side:
    return lambda site: run(ours(site, options, keys, jobs))


async def ours(site: Site, options: TaskOptions, keys: int, jobs: int) -> Sample:
    hf = Holdfast(site.url, queues=[Queue(QUEUE, bound=BOUND)])
    task: Any = hf.task(**options)(noop)
    drained = 0
    behind = _BEHIND if "order" in options else 0
    async with hf, registered_worker(site) as worker:
        await hf.aenqueue_many([task.call(str(number), number) for number in range(keys)])
        while claimed := await worker.claim(_SLOTS, behind):
            await worker.settle(claimed)
        with Stopwatch(site) as watch:
            for first in range(0, jobs, _BATCH):
                await hf.aenqueue_many(
                    [task.call(str(each % keys), each) for each in range(first, min(first + _BATCH, jobs))]
                )
            while claimed := await worker.claim(_SLOTS, behind):
                await worker.settle(claimed)
                drained += len(claimed)
    assert drained == jobs, "every limit lets everybody through"
    return watch.rate(drained)


async def noop(tenant: str, number: int) -> None:
    """What a job would do."""


# ── by the real worker ───────────────────────────────────────────────────────────────────────────────────────────────


def _through_the_worker(kind: str, keys: int, jobs: int) -> Side:
    """It runs already when the first job is enqueued, and is done when the last one is settled."""

    def side(site: Site) -> Sample:
        with running_worker(site, 1) as worker:
            run(_until_there(site))
            run(_enqueue(site, kind, keys, jobs))
            run(wait_until_done(site, worker))
        return run(span_of(site))

    return side


async def _until_there(site: Site) -> None:
    store = site.make_store()
    try:
        async with asyncio.timeout(30):
            while not await store.workers():  # noqa: ASYNC110 - another process tells nobody here
                await asyncio.sleep(0.05)
    finally:
        await store.close()


async def _enqueue(site: Site, kind: str, keys: int, jobs: int) -> None:
    hf = Holdfast(site.url, queues=[Queue(QUEUE, bound=BOUND)])
    options: dict[str, Any] = {"name": kind, **KINDS[kind]}
    task: Any = hf.task(**options)(getattr(benchmarks.jobs, kind).function)
    async with hf:
        for first in range(0, jobs, _BATCH):
            await hf.aenqueue_many(
                [task.call(str(each % keys), each) for each in range(first, min(first + _BATCH, jobs))]
            )
