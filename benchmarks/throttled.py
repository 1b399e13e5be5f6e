"""What a claim costs others when a lot waits behind one key that is throttled: it must not depend on that.

A million jobs in one line, and a tenth of that in as many lines: each has an order of its own, and all share a limit.

The crowded database is made once and used in every round: a round takes as many jobs from it as it puts in.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from benchmarks.app import BOUND, QUEUE, TASK
from benchmarks.figures import percentiles
from benchmarks.loop import run
from benchmarks.rounds import Side, alternate_by_host
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.table import Findings, rows
from benchmarks.worker import IdleWorker, registered_worker
from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.store import Queue, Store

_SLOTS = 10
_OTHERS = 100
_EACH = 3
_WARM_UP = 20
_BATCH = 10_000
_GOAL = 3.0
_FIGURES = ("p50 ms", "p99 ms")
_MONTH = 31 * 86_400 * 1_000_000
_ids = Ids()


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    found = Findings()
    one_line = sizes.throttled_jobs
    _measure(found, sizes, hosts, f"{one_line:,} behind a throttled one", lambda site: _throttle(site, one_line))
    lines = one_line // 10
    _measure(found, sizes, hosts, f"{lines:,} orders behind a full one", lambda site: _fill_up(site, lines))
    return found


def _measure(
    found: Findings, sizes: Sizes, hosts: Sequence[Host], what: str, crowd: Callable[[Site], Coroutine[Any, Any, None]]
) -> None:
    with ExitStack() as stack:
        crowded = {host.name: stack.enter_context(host.fresh()) for host in hosts}
        for site in crowded.values():
            run(crowd(site))

        def sides_of(host: Host) -> dict[str, Side]:
            def many(_: Site) -> Sample:
                return run(_claims(crowded[host.name], sizes.backlog_claims))

            return {"alone": lambda site: run(_claims(site, sizes.backlog_claims)), "beside": many}

        for store, figures in alternate_by_host(hosts, sides_of, sizes.rounds).items():
            title = f"claim of {_SLOTS} from other keys, {what}, beside none"
            p50, p99 = rows(title, store, figures, _FIGURES, ours="beside", limit="alone")
            assert p99.ratio is not None
            found.rows.extend([p50, p99.with_goal(f"<= {_GOAL:.0f} x", p99.ratio.median <= _GOAL)])


async def _throttle(site: Site, jobs: int) -> None:
    throttled = LineRule((GateRule(GateKind.RATE, TASK, "throttled", 1, _MONTH),))
    async with _fillable(site) as worker:
        for first in range(0, jobs + 1, _BATCH):
            await _enqueue(worker.store, [throttled] * min(_BATCH, jobs + 1 - first))
        # The one that may start has started: from now on the key is throttled.
        await worker.settle(await worker.claim(1))
        assert await worker.claim(1) == []


async def _fill_up(site: Site, lines: int) -> None:
    full = GateRule(GateKind.LIMIT, TASK, "full")
    async with _fillable(site) as worker:
        for first in range(0, lines + 1, _BATCH):
            numbers = range(first, min(first + _BATCH, lines + 1))
            orders = [GateRule(GateKind.ORDER, TASK, str(number)) for number in numbers]
            await _enqueue(worker.store, [LineRule((full, order)) for order in orders])
        assert len(await worker.claim(1)) == 1, "it has the one place, and keeps it"
        # The others are parked one after the other, some hundreds by each claim.
        for _ in range(lines // 400 + 10):
            assert await worker.claim(1) == []


@asynccontextmanager
async def _fillable(site: Site) -> AsyncIterator[IdleWorker]:
    async with registered_worker(site) as worker:
        await worker.store.declare_queues([Queue(QUEUE, bound=BOUND)])
        yield worker


async def _enqueue(store: Store, rules: Sequence[LineRule]) -> None:
    ids = _ids.make_many(len(rules))
    await store.enqueue(
        [NewJob(id, TASK, QUEUE, '{"number":1}', line=rule) for id, rule in zip(ids, rules, strict=True)]
    )


async def _claims(site: Site, claims: int) -> Sample:
    waits: list[float] = []
    others = [LineRule((GateRule(GateKind.LIMIT, TASK, str(key), 1_000),)) for key in range(_OTHERS)]
    async with registered_worker(site) as worker:
        await _enqueue(worker.store, others * _EACH)
        for number in range(_WARM_UP + claims):
            started = time.perf_counter()
            jobs = await worker.claim(_SLOTS)
            waits.append(time.perf_counter() - started)
            assert len(jobs) == _SLOTS
            await worker.settle(jobs)
            first = number * _SLOTS
            await _enqueue(worker.store, [others[each % _OTHERS] for each in range(first, first + _SLOTS)])
        while jobs := await worker.claim(1_000):
            await worker.settle(jobs)
    return percentiles(waits[_WARM_UP:])
