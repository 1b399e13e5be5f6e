"""The ticker is there when a rate opens, and does not run in circles while there is nothing to do."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import cast

import pytest

from holdfast.maintenance.service import SOONEST, Exactly, Service
from holdfast.maintenance.ticker import Ticker
from holdfast.store import Store, Tick

MILLISECOND = timedelta(milliseconds=1)


class Answers:
    """A store that says of each tick what it is told to."""

    def __init__(self, *ticks: Tick) -> None:
        self._ticks = list(ticks)

    async def tick(self) -> Tick:
        return self._ticks.pop(0)


def ticker_of(answers: Answers) -> Ticker:
    return Ticker(lambda: cast("Store", answers))


async def nap_after(tick: Tick, seconds: float = 0.0) -> float:
    """After a tick that took so long, however long this machine was at something else meanwhile."""
    moments = iter([0.0, seconds])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "time", lambda: next(moments))
        return await ticker_of(Answers(tick)).act()


def is_exact(nap: float, milliseconds: float) -> bool:
    return isinstance(nap, Exactly) and milliseconds / 1000 <= nap < (milliseconds + 1) / 1000


async def test_the_nap_ends_when_a_rate_opens() -> None:
    assert is_exact(await nap_after(Tick(0, 0, 100 * MILLISECOND, 100 * MILLISECOND)), 100)
    assert is_exact(await nap_after(Tick(0, 0, 5 * MILLISECOND, 5 * MILLISECOND)), 5)


async def test_the_nap_ends_when_a_job_is_due() -> None:
    assert is_exact(await nap_after(Tick(0, 0, 1500 * MILLISECOND)), 1500)


async def test_no_nap_is_shorter_than_what_a_loop_can_tell_from_none() -> None:
    assert is_exact(await nap_after(Tick(0, 0, 0.01 * MILLISECOND, 0.01 * MILLISECOND)), 2)


async def test_jobs_that_are_due_one_after_the_other_gather_but_keep_no_rate_waiting() -> None:
    assert is_exact(await nap_after(Tick(1, 0, MILLISECOND)), 1000 * SOONEST)
    assert is_exact(await nap_after(Tick(1, 0, MILLISECOND, 6 * MILLISECOND)), 6)


async def test_what_is_due_and_could_not_be_had_is_not_asked_for_all_the_time() -> None:
    for nap in (await nap_after(Tick(0, 0, timedelta(0), timedelta(0))), await nap_after(Tick(0, 0, timedelta(0)))):
        assert nap == SOONEST
        assert not isinstance(nap, Exactly), "others ask too"


async def test_slow_ticks_take_a_small_part_of_the_time() -> None:
    nap = await nap_after(Tick(0, 0, MILLISECOND, MILLISECOND), seconds=0.01)
    assert nap >= 4 * 0.01


async def test_without_a_time_that_is_near_the_nap_is_long_and_not_the_same_for_all() -> None:
    for left in (None, timedelta(minutes=1)):
        nap = await nap_after(Tick(0, 0, left, left))
        assert nap == 2.5
        assert not isinstance(nap, Exactly)


async def test_hints_gather_for_less_while_rates_with_short_windows_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    near, nothing = Tick(0, 0, 90 * MILLISECOND, 90 * MILLISECOND), Tick(0, 0, None)
    it = ticker_of(Answers(nothing, near, nothing, nothing))
    await it.act()
    assert it.gathers_for == SOONEST
    await it.act()
    await it.act()
    assert it.gathers_for < SOONEST, "the rate has just been opened, and is used up again soon"
    monkeypatch.setattr(it, "_is_near_until", 0.0)
    await it.act()
    assert it.gathers_for == SOONEST


async def test_a_service_keeps_to_an_exact_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(Service):
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []
            self.is_done = asyncio.Event()

        async def act(self) -> float:
            self.times.append(asyncio.get_running_loop().time())
            if len(self.times) == 2:
                self.is_done.set()
            return Exactly(0.01)

    monkeypatch.setattr(random, "uniform", lambda *_: 1000.0)
    service = Twice()
    running = asyncio.create_task(service.run())
    async with asyncio.timeout(5):
        await service.is_done.wait()
    running.cancel()
    assert service.times[1] - service.times[0] > 0.005
