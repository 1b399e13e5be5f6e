"""What a claim costs when a lot waits and a lot is over: it must not depend on either.

A crowded database is made once and used in every round: a round takes as many jobs from it as it puts in.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.figures import percentiles
from benchmarks.loop import run
from benchmarks.rounds import Side, alternate_by_host
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.table import Findings, Row, rows
from benchmarks.worker import registered_worker

_SLOTS = 10
_FEW = 300
_WARM_UP = 20
"""Claims before the first that counts: connections are opened and statements prepared."""
_GOAL = 2.0
_SLOWEST = "slowest enqueue ms"
"""Beside the claims as many jobs come in, and somebody has to see whether the queue is full."""
_FIGURES = ("p50 ms", "p99 ms", _SLOWEST)


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    found = Findings()
    with ExitStack() as stack:
        crowded = {
            (host.name, ready): _crowded(stack, host, ready, sizes.backlog_finished)
            for host in hosts
            for ready in sizes.backlogs
        }

        def sides_of(host: Host) -> dict[str, Side]:
            claims = sizes.backlog_claims
            sides = _sides(_FEW, None, claims)
            for ready in sizes.backlogs:
                sides |= _sides(ready, crowded[host.name, ready], claims)
            return sides

        for store, figures in alternate_by_host(hosts, sides_of, sizes.rounds).items():
            few = rows(_title(_FEW), store, figures, _FIGURES, ours=f"ours {_FEW}", limit=f"limit {_FEW}")
            found.rows.extend(few)
            for ready in sizes.backlogs:
                title = f"{_title(ready)}, {sizes.backlog_finished:,} finished"
                p50, p99, slowest = rows(title, store, figures, _FIGURES, ours=f"ours {ready}", limit=f"limit {ready}")
                found.rows.extend([p50, _judged(p99, few[1]), slowest])
    return found


def _title(ready: int) -> str:
    return f"claim of {_SLOTS}, {ready:,} ready"


def _judged(many: Row, few: Row) -> Row:
    growth = many.ours.over(few.ours).median
    return many.with_goal(f"<= {_GOAL:.0f} x {_FEW}'s, is {growth:.2f} x", growth <= _GOAL)


def _crowded(stack: ExitStack, host: Host, ready: int, finished: int) -> Site:
    site = stack.enter_context(host.fresh())
    run(site.fill(ready=ready, finished=finished))
    return site


def _sides(ready: int, crowded: Site | None, claims: int) -> dict[str, Side]:
    def ours(fresh: Site) -> Sample:
        return run(_ours(crowded or _with_few(fresh), claims))

    def limit(fresh: Site) -> Sample:
        return run(_limit(crowded or _with_few(fresh), claims))

    return {f"ours {ready}": ours, f"limit {ready}": limit}


def _with_few(site: Site) -> Site:
    run(site.fill(ready=_FEW))
    return site


async def _ours(site: Site, claims: int) -> Sample:
    waits: list[float] = []
    slowest = 0.0
    async with registered_worker(site) as worker:
        for _ in range(_WARM_UP + claims):
            started = time.perf_counter()
            jobs = await worker.claim(_SLOTS)
            waits.append(time.perf_counter() - started)
            await worker.settle(jobs)
            started = time.perf_counter()
            await worker.enqueue(len(jobs))
            slowest = max(slowest, time.perf_counter() - started)
    return percentiles(waits[_WARM_UP:]) | {_SLOWEST: slowest * 1e3}


async def _limit(site: Site, claims: int) -> Sample:
    waits: list[float] = []
    limit = await site.open_limit()
    for _ in range(_WARM_UP + claims):
        started = time.perf_counter()
        claim = await limit.claim(_SLOTS)
        waits.append(time.perf_counter() - started)
        await limit.settle(claim)
        await limit.enqueue(range(len(claim.jobs)))
    await limit.close()
    return percentiles(waits[_WARM_UP:])
