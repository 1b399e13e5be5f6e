"""The real worker: how fast it drains a queue, how soon it starts a job, and what it costs while it is idle."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import benchmarks.jobs
from benchmarks.figures import Figure
from benchmarks.loop import run
from benchmarks.rounds import Side, alternate
from benchmarks.shift import running_programs, running_worker, span_of, wait_until_done
from benchmarks.site import Host, Sample, Site
from benchmarks.sizes import Sizes
from benchmarks.table import Findings, Row, at_least, rows
from holdfast import Holdfast, Queue

_PART = 0.7
_RATES = {"sqlite": 30_000, "postgres": 24_000}
_LATENCY = 2.5
_LATENCY_ROUNDS = 3
_SETTLED_AFTER = 3.0
_IDLE_SECONDS = 20.0
_IDLE_GOALS = {"MB per child": ("< 60 MB", 60), "cpu %": ("< 1 %", 1), "queries/s": ("< 2/s", 2)}
_TICKS = 100.0
"""A second of CPU, as /proc counts it."""


def measure(sizes: Sizes, hosts: Sequence[Host]) -> Findings:
    found = Findings()
    for processes in (1, 2):
        title = f"drain by the worker, {'one process' if processes == 1 else f'{processes} processes'}"
        sides: dict[str, Side] = {
            "ours": _drain(processes, sizes.worker_jobs),
            "limit": _limit(processes, sizes.worker_jobs),
        }
        for store, figures in alternate(hosts, sides, sizes.process_rounds).items():
            (rate,) = rows(title, store, figures, ["jobs/s"])
            found.rows.append(at_least(rate, _PART))
            if processes == 1:
                goal = _RATES[store]
                beside = Row(title, store, "jobs/s", rate.ours)
                found.rows.append(beside.with_goal(f">= {goal:,}/s", rate.ours.median >= goal))
    for task, part in (("in_a_thread", 20), ("in_a_process", 100), ("fails", 20)):
        side: dict[str, Side] = {"ours": _drain_task(task, sizes.worker_jobs // part)}
        for store, figures in alternate(hosts, side, sizes.process_rounds).items():
            found.rows.extend(rows(f"drain of {task}", store, figures, ["jobs/s"]))
    for host in hosts:
        found.rows.extend(_latency(host, sizes.single_jobs // 2))
    for store, figures in alternate(hosts, {"ours": _idle}, sizes.process_rounds).items():
        found.rows.extend(_idle_rows(store, figures["ours"]))
    return found


def _drain(processes: int, jobs: int) -> Side:
    def side(site: Site) -> Sample:
        run(site.fill(ready=jobs))
        with running_worker(site, processes) as worker:
            run(wait_until_done(site, worker))
        return run(span_of(site, is_warm=True))

    return side


def _limit(processes: int, jobs: int) -> Side:
    def side(site: Site) -> Sample:
        run(site.fill(ready=jobs))
        with running_programs(site, processes) as programs:
            run(wait_until_done(site, *programs))
        return run(span_of(site, is_warm=True))

    return side


def _drain_task(name: str, jobs: int) -> Side:
    async def enqueue(hf: Holdfast, task: Any) -> None:
        for first in range(0, jobs, 1_000):
            await hf.aenqueue_many([task.call(number) for number in range(first, min(first + 1_000, jobs))])

    def side(site: Site) -> Sample:
        run(_with_app(site, name, enqueue))
        with running_worker(site, 1) as worker:
            run(wait_until_done(site, worker))
        return run(span_of(site))

    return side


async def _with_app(site: Site, name: str, act: Callable[[Holdfast, Any], Coroutine[Any, Any, None]]) -> None:
    """A task of the worker's app, with what its jobs are told of it, on this site's database."""
    task = getattr(benchmarks.jobs, name)
    hf = Holdfast(site.url, queues=[Queue("default", bound=10**9)])
    copy = hf.task(retry=task.settings.retry)(task.function)
    async with hf:
        await act(hf, copy)


# ── latency ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _latency(host: Host, jobs: int) -> list[Row]:
    """One job at a time. After a rest everything has to be woken up: processes, the server's, and the processor."""
    found: list[Row] = []
    for title, rest in (("enqueue -> start, one at a time", 0.0), ("enqueue -> start, after 20 ms of rest", 0.02)):
        middles, ends = Figure(), Figure()
        for _ in range(_LATENCY_ROUNDS):
            with host.fresh() as site, running_worker(site, 1):
                ranked = sorted(run(_waits(site, jobs, rest)))
            middles.values.append(statistics.median(ranked))
            ends.values.append(ranked[int(len(ranked) * 0.99)])
        p50, p99 = middles.median, ends.median
        found.append(Row(title, host.name, "p50 ms", middles).with_goal(f"<= {_LATENCY} ms", p50 <= _LATENCY))
        found.append(Row(title, host.name, "p99 ms", ends).with_goal("< 3 x p50", p99 < 3 * p50))
    return found


async def _waits(site: Site, jobs: int, rest: float) -> list[float]:
    hf = Holdfast(site.url)
    task = hf.task(benchmarks.jobs.started_at.function)
    waits: list[float] = []
    async with hf:
        await (await task.aenqueue()).aresult("30s")
        for _ in range(jobs):
            if rest:
                await asyncio.sleep(rest)
            before = time.time_ns()
            job = await task.aenqueue()
            started = await job.aresult("30s")
            waits.append((started - before) / 1e6)
    return waits


# ── idle ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _idle(site: Site) -> Sample:
    run(site.queries())
    started = time.monotonic()
    with running_worker(site, 1) as worker:
        run(_first_job(site))
        start_up = time.monotonic() - started
        time.sleep(_SETTLED_AFTER)
        before, queries = _cpu(worker), run(site.queries())
        time.sleep(_IDLE_SECONDS)
        cpu = (_cpu(worker) - before) / _IDLE_SECONDS
        asked = (run(site.queries()) - queries) / _IDLE_SECONDS
        children = [_memory(pid) for pid in _children(worker.pid)]
    sample = {"start-up s": start_up, "MB per child": max(children), "cpu %": 100 * cpu}
    return sample | {"queries/s": asked} if queries >= 0 else sample


def _idle_rows(store: str, figures: Mapping[str, Figure]) -> list[Row]:
    found: list[Row] = []
    for name, figure in figures.items():
        row = Row("idle worker, one process", store, name, figure)
        if name in _IDLE_GOALS:
            goal, most = _IDLE_GOALS[name]
            row = row.with_goal(goal, figure.median < most)
        found.append(row)
    return found


async def _first_job(site: Site) -> None:
    hf = Holdfast(site.url)
    task = hf.task(benchmarks.jobs.started_at.function)
    async with hf:
        await (await task.aenqueue()).aresult("60s")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu(worker: subprocess.Popen[bytes]) -> float:
    """Seconds of CPU that the supervisor and its children have used."""
    total = 0.0
    for pid in [worker.pid, *_children(worker.pid)]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def _memory(pid: int) -> float:
    """Megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
