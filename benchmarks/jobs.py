"""The app of real workers under test."""

from __future__ import annotations

import time

from benchmarks.app import BOUND, QUEUE, TASK
from holdfast import Holdfast, Limit, Queue, Rate, Retry

hf = Holdfast(queues=[Queue(QUEUE, bound=BOUND, scheduled_bound=BOUND)])


@hf.task(name=TASK, queue=QUEUE)
async def noop(number: int) -> None:
    """What most jobs are measured with."""


@hf.task
async def started_at() -> int:
    """When it ran, in nanoseconds since 1970."""
    return time.time_ns()


@hf.task
def in_a_thread(number: int) -> None:
    """A `def` task."""


@hf.task(isolation="process")
def in_a_process(number: int) -> None:
    """Alone in a process."""


@hf.task(retry=Retry(2, base="1ms", cap="1ms"))
async def fails(number: int) -> None:
    """Fails, is tried again, and goes dead."""
    raise ValueError(number)


@hf.task
async def plain(tenant: str, number: int) -> None:
    """Under no limit, but otherwise as those that follow."""


@hf.task(rate=Rate(1_000_000, "1m", "{tenant}"))
async def rate(tenant: str, number: int) -> None:
    """Under a rate that stops nobody."""


@hf.task(limit=Limit(1_000, "{tenant}"))
async def limit(tenant: str, number: int) -> None:
    """Under a limit that stops nobody."""


@hf.task(order="{tenant}")
async def order(tenant: str, number: int) -> None:
    """One after the other."""


@hf.task(fair="{tenant}")
async def fair(tenant: str, number: int) -> None:
    """Tenants take turns."""
