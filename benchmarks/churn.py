"""Jobs come, are done, and are pruned, for as long as one likes: neither speed nor size may change with time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from benchmarks.app import BOUND, QUEUE
from benchmarks.figures import Figure
from benchmarks.loop import run
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.table import Findings, Row
from benchmarks.worker import IdleWorker, registered_worker
from holdfast import Queue, Retention

_PRODUCERS = 4
_CLAIMERS = 2
_BATCH = 200
_MOST_WAITING = 5_000
_SLICES = 12
_COMPARED = 3
"""Slices at the beginning and at the end. The very first is left out: nothing is old enough to be pruned yet."""
_GOAL = 0.9
_BOUNDED = ("dead rows", "table MB", "index MB", "file MB")
_BOUND = 1.5
_LONG_ENOUGH = 300.0
"""Autovacuum looks once a minute: a short run does not tell whether it keeps up."""
_LOOK_EVERY = 5.0
"""Within a slice the highest is kept: what autovacuum cleans up once a minute goes up and down like a saw."""
_RETENTION = 5.0
_PAUSE = 0.002


@dataclass
class Traffic:
    """What went through so far."""

    enqueued: int = 0
    settled: int = 0
    pruned: int = 0


@dataclass
class Course:
    """What was seen in each slice."""

    rates: list[float] = field(default_factory=list)
    vitals: list[Sample] = field(default_factory=list)

    def growth(self, name: str) -> float:
        """The highest of the last third over the highest of the third before it."""
        third = len(self.vitals) // 3
        values = [vitals[name] for vitals in self.vitals]
        return max(values[-third:]) / max(*values[-2 * third : -third], 1.0)

    def slowness(self) -> float:
        first, last = self.rates[1 : 1 + _COMPARED], self.rates[-_COMPARED:]
        return (sum(last) / len(last)) / (sum(first) / len(first))


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    """Once, not in rounds: the slices of time are what is compared."""
    found = Findings()
    seconds = sizes.churn_seconds
    title = f"enqueue, claim, settle and prune for {seconds:.0f} s"
    for host in hosts:
        with host.fresh() as site:
            course = run(_churn(site, seconds))
        kept = course.slowness()
        rate = Row(title, host.name, "jobs/s", Figure(course.rates))
        found.rows.append(rate.with_goal(f"last >= {_GOAL:.0%} of first, is {kept:.0%}", kept >= _GOAL))
        for name in [name for name in _BOUNDED if name in course.vitals[0]]:
            row = Row(title, host.name, name, Figure([vitals[name] for vitals in course.vitals]))
            found.rows.append(_judged(row, course.growth(name)) if seconds >= _LONG_ENOUGH else row)
        found.notes.append(f"churn, {host.name}, by slices of {seconds / _SLICES:.1f} s:")
        found.notes.extend(_line(rate, vitals) for rate, vitals in zip(course.rates, course.vitals, strict=True))
    return found


def _judged(row: Row, growth: float) -> Row:
    return row.with_goal(f"<= {_BOUND:g} x the third before, is {growth:.2f} x", growth <= _BOUND)


def _line(rate: float, vitals: Sample) -> str:
    return "  ".join([f"  {rate:>8,.0f} jobs/s", *(f"{name} {value:,.0f}" for name, value in vitals.items())])


async def _churn(site: Site, seconds: float) -> Course:
    course, traffic = Course(), Traffic()
    kept = timedelta(seconds=min(_RETENTION, seconds / _SLICES))
    async with registered_worker(site, Retention(completed=kept)) as worker:
        await worker.store.declare_queues([Queue(QUEUE, BOUND, BOUND)])
        async with asyncio.TaskGroup() as group:
            tasks = [
                *(group.create_task(_produce(worker, traffic)) for _ in range(_PRODUCERS)),
                *(group.create_task(_work(worker, traffic)) for _ in range(_CLAIMERS)),
                group.create_task(_prune(worker, traffic)),
            ]
            await _observe(site, seconds / _SLICES, traffic, course)
            for task in tasks:
                task.cancel()
    return course


async def _produce(worker: IdleWorker, traffic: Traffic) -> None:
    while True:
        if traffic.enqueued - traffic.settled > _MOST_WAITING:
            await asyncio.sleep(_PAUSE)
        else:
            await worker.enqueue(_BATCH)
            traffic.enqueued += _BATCH


async def _work(worker: IdleWorker, traffic: Traffic) -> None:
    while True:
        if jobs := await worker.claim(_BATCH):
            await worker.settle(jobs)
            traffic.settled += len(jobs)
        else:
            await asyncio.sleep(_PAUSE)


async def _prune(worker: IdleWorker, traffic: Traffic) -> None:
    while True:
        pruned = await worker.store.prune()
        traffic.pruned += pruned.jobs
        if pruned.is_done:
            await asyncio.sleep(_PAUSE)


async def _observe(site: Site, length: float, traffic: Traffic, course: Course) -> None:
    for _ in range(_SLICES):
        settled, pruned, started = traffic.settled, traffic.pruned, time.monotonic()
        highest: Sample = {}
        while (left := started + length - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _LOOK_EVERY))
            vitals = await site.vitals()
            highest = {name: max(value, highest.get(name, value)) for name, value in vitals.items()}
        passed = time.monotonic() - started
        course.rates.append((traffic.settled - settled) / passed)
        course.vitals.append({"pruned/s": (traffic.pruned - pruned) / passed} | highest)
