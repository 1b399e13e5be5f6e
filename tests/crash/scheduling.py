"""Processes that fire schedules."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

from holdfast.clock import Clock, SystemClock
from holdfast.maintenance.scheduler import Scheduler
from holdfast.store import Store
from tests.crash.line import Line

START = datetime(2030, 1, 1, tzinfo=UTC)


class FastClock:
    """A clock that runs so many times as fast as others, the same in all processes."""

    def __init__(self, since: float, speed: float) -> None:
        self._since = since
        self._speed = speed

    def now(self) -> datetime:
        return START + timedelta(seconds=(time.time() - self._since) * self._speed)

    def monotonic(self) -> float:
        return time.monotonic()


def open_at(url: str, clock: Clock | None) -> Store:
    """A store with this clock, or with its own."""
    if url.startswith("postgresql"):
        from holdfast.stores.postgres import PostgresStore

        return PostgresStore(url, clock=clock)
    from holdfast.stores.sqlite import SqliteStore

    return SqliteStore(url.removeprefix("sqlite:///"), clock=clock)


async def run_scheduler(line: Line, url: str) -> None:
    """As in every worker."""
    store = open_at(url, None)
    await store.open()
    line.say("ready")
    await Scheduler(lambda: store, SystemClock(), random.random).run()


async def fire_all_the_time(line: Line, url: str, since: float, speed: float) -> None:
    """Without a rest, while time runs."""
    clock = FastClock(since, speed)
    store = open_at(url, clock)
    scheduler = Scheduler(lambda: store, clock, random.random)
    await store.open()
    line.say("ready")
    while True:
        await scheduler.act()
        await asyncio.sleep(0)
