"""The app under test: one task that takes one number, on a queue that does not fill up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast import AsyncTask, Holdfast, Queue

QUEUE: Final = "default"
TASK: Final = "noop"
BOUND: Final = 1_000_000_000


async def noop(number: int) -> None:
    """What a job would do."""


def make_app(url: str) -> tuple[Holdfast, AsyncTask[[int], None]]:
    hf = Holdfast(url, queues=[Queue(QUEUE, bound=BOUND, scheduled_bound=BOUND)])
    return hf, hf.task(name=TASK, queue=QUEUE)(noop)


@asynccontextmanager
async def opened_app(url: str) -> AsyncIterator[tuple[Holdfast, AsyncTask[[int], None]]]:
    """Open, and warm: statements are read and types resolved before anything is timed."""
    hf, task = make_app(url)
    async with hf:
        await task.aenqueue(0)
        yield hf, task
