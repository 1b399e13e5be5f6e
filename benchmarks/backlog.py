"""What a claim costs when a lot waits and a lot is over: it must not depend on either.

The crowded file is made once and used in every round: a round takes as many jobs from it as it puts in.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from benchmarks.database import fill, fresh
from benchmarks.limit import QUEUE, TASK, Limit
from benchmarks.rounds import Sample, Side, alternate, percentiles
from benchmarks.sizes import Sizes
from benchmarks.table import Row, rows
from benchmarks.worker import registered_worker
from holdfast.ids import Ids
from holdfast.job import NewJob

_SLOTS = 10
_FEW = 300
_GOAL = 2.0
_FIGURES = ("p50 ms", "p99 ms")


def measure(sizes: Sizes, folder: Path) -> list[Row]:
    with fresh(folder) as crowded:
        fill(crowded, ready=sizes.backlog_jobs, finished=sizes.backlog_jobs)
        claims = sizes.backlog_claims
        sides: dict[str, Side] = {
            "ours, few": lambda path: asyncio.run(_ours(_with_few(path), claims)),
            "limit, few": lambda path: _limit(_with_few(path), claims),
            "ours, many": lambda _: asyncio.run(_ours(crowded, claims)),
            "limit, many": lambda _: _limit(crowded, claims),
        }
        figures = alternate(sides, sizes.rounds, folder)
    few = {"ours": figures["ours, few"], "limit": figures["limit, few"]}
    many = {"ours": figures["ours, many"], "limit": figures["limit, many"]}
    p50, p99 = rows(f"claim of {_SLOTS}, {sizes.backlog_jobs:,} ready and as many finished", many, _FIGURES)
    growth = many["ours"]["p99 ms"].over(few["ours"]["p99 ms"]).median
    goal = f"<= {_GOAL:.0f} x few, is {growth:.2f} x"
    return [
        *rows(f"claim of {_SLOTS}, {_FEW} ready", few, _FIGURES),
        p50,
        Row(p99.measurement, p99.figure, p99.ours, p99.limit, goal, growth <= _GOAL),
    ]


def _with_few(path: Path) -> Path:
    fill(path, ready=_FEW)
    return path


async def _ours(path: Path, claims: int) -> Sample:
    ids = Ids()
    waits: list[float] = []
    async with registered_worker(path) as worker:
        for _ in range(claims):
            started = time.perf_counter()
            jobs = await worker.claim(_SLOTS)
            waits.append(time.perf_counter() - started)
            await worker.settle(jobs)
            await worker.store.enqueue([NewJob(id, TASK, QUEUE, '{"number":1}') for id in ids.make_many(len(jobs))])
    return percentiles(waits)


def _limit(path: Path, claims: int) -> Sample:
    waits: list[float] = []
    limit = Limit(path)
    for _ in range(claims):
        started = time.perf_counter()
        token, jobs = limit.claim(_SLOTS)
        waits.append(time.perf_counter() - started)
        limit.settle(token, jobs)
        limit.enqueue(range(len(jobs)))
    limit.close()
    return percentiles(waits)
