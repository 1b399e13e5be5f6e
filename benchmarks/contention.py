"""Four processes on one file: two drain, one enqueues in bulk, one enqueues a single row every few milliseconds.

How long the single row waits is what matters. The limit's processes have SQLite's own waiting and nothing else, which
shows what taking turns is for.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from benchmarks import contender
from benchmarks.contender import Report, Role
from benchmarks.database import fill
from benchmarks.rounds import Sample, Side, alternate, percentiles
from benchmarks.sizes import Sizes
from benchmarks.table import Row, rows

_ROLES = (Role.DRAIN, Role.DRAIN, Role.BULK, Role.SINGLE)
_GOAL = 100.0
_TO_START = 60.0
_TO_END = 10.0


def measure(sizes: Sizes, folder: Path) -> list[Row]:
    sides: dict[str, Side] = {
        "ours": lambda path: _run(path, sizes, is_limit=False),
        "limit": lambda path: _run(path, sizes, is_limit=True),
    }
    figures = alternate(sides, sizes.rounds, folder)
    p50, p99, longest = rows("single row among 4 processes", figures, ("p50 ms", "p99 ms", "max ms"))
    worst = max(longest.ours.values)
    goal = f"< {_GOAL:.0f} ms, worst {worst:.0f}"
    return [
        p50,
        p99,
        Row(longest.measurement, longest.figure, longest.ours, longest.limit, goal, worst < _GOAL),
        *rows("4 processes together", figures, ("drained/s", "enqueued/s")),
    ]


def _run(path: Path, sizes: Sizes, *, is_limit: bool) -> Sample:
    fill(path, ready=sizes.contention_jobs)
    seconds = sizes.contention_seconds
    reports = _reports_of_all(path, seconds, is_limit)
    drained = sum(report.jobs for report in reports if report.role is Role.DRAIN)
    enqueued = sum(report.jobs for report in reports if report.role is not Role.DRAIN)
    waits = [wait for report in reports if report.role is Role.SINGLE for wait in report.waits]
    return percentiles(waits) | {"drained/s": drained / seconds, "enqueued/s": enqueued / seconds}


def _reports_of_all(path: Path, seconds: float, is_limit: bool) -> list[Report]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(_ROLES), timeout=_TO_START)
    processes: list[SpawnProcess] = []
    receivers: list[Connection] = []
    for role in _ROLES:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=contender.run, args=(role, path, seconds, is_limit, barrier, sender))
        process.start()
        sender.close()  # so that the end of the process is seen here
        processes.append(process)
        receivers.append(receiver)
    try:
        return [_received(receiver, _TO_START + seconds) for receiver in receivers]
    finally:
        for process in processes:
            process.join(_TO_END)
            process.kill()


def _received(receiver: Connection, seconds: float) -> Report:
    if not receiver.poll(seconds):
        raise TimeoutError("One of the processes does not answer.")
    report = receiver.recv()
    assert isinstance(report, Report)
    return report
