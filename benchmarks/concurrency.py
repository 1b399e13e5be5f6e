"""Sixteen producers and eight claimers, each with a store of its own, in four processes: nobody may fail.

They use the same keys at the same moments, in any order, while jobs are given back, ripened, rescued and pruned around
them. Afterwards every job that was accepted must be completed once, and be the only one of its key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks import station
from benchmarks.app import BOUND, QUEUE
from benchmarks.loop import run
from benchmarks.processes import reports_of_all
from benchmarks.rounds import alternate
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.table import Findings, Row, rows
from benchmarks.worker import registered_worker
from holdfast import JobState, Queue
from holdfast.store import Filter

_PROCESSES = 4
_PRODUCERS = 4
_CLAIMERS = 2
_BATCH = 1_000
_COMPLETED = Filter(states=frozenset([JobState.COMPLETED]))


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    found = Findings()
    errors: Counter[str] = Counter()
    title = f"{_PROCESSES * _PRODUCERS} producers, {_PROCESSES * _CLAIMERS} claimers"
    sides = {"ours": lambda site: _run(site, sizes.concurrency_seconds, errors)}
    for store, figures in alternate(hosts, sides, sizes.process_rounds).items():
        found.rows.extend(rows(title, store, figures, ("enqueued/s", "completed/s")))
        found.rows.extend(map(_judged, rows(title, store, figures, ("errors", "deadlocks", "lost or doubled"))))
    found.notes.extend(f"concurrency: {count} x {error}" for error, count in errors.items())
    return found


def _judged(row: Row) -> Row:
    return row.with_goal("= 0", not any(row.ours.values))


def _run(site: Site, seconds: float, errors: Counter[str]) -> Sample:
    run(_declare(site))
    reports = reports_of_all(station.work, [(site, seconds, _PRODUCERS, _CLAIMERS)] * _PROCESSES, seconds)
    for report in reports:
        errors.update(report.errors)
    enqueued = sum(report.enqueued for report in reports)
    completed = sum(report.completed for report in reports)
    vitals = run(site.vitals())
    return {
        "enqueued/s": enqueued / seconds,
        "completed/s": completed / seconds,
        "errors": float(sum(report.errors.total() for report in reports)),
        "lost or doubled": float(abs(enqueued - completed - run(_complete_the_rest(site)))),
    } | {name: vitals[name] for name in ("deadlocks",) if name in vitals}


async def _declare(site: Site) -> None:
    store = site.make_store()
    await store.declare_queues([Queue(QUEUE, BOUND, BOUND)])
    await store.close()


async def _complete_the_rest(site: Site) -> int:
    """How many were left: with those completed before, they must be as many as were accepted."""
    async with registered_worker(site) as worker:
        before = await worker.store.count(_COMPLETED)
        while jobs := await worker.claim(_BATCH):
            await worker.settle(jobs)
        return await worker.store.count(_COMPLETED) - before
