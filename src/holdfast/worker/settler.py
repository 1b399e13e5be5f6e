"""The settler: tells the store what came of jobs, in batches, until it has heard an answer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast.engine import Engine
from holdfast.errors import HoldfastError, OutcomeUnknown, StoreUnavailable
from holdfast.store import Settled, Settlement

log = logging.getLogger("holdfast.worker")

LARGEST_SETTLEMENT: Final = 1000
_LONGEST_PAUSE: Final = 2.0
_GATHER_FOR: Final = 0.005
"""Seconds at the most, as long as more come in every turn of the loop."""

Answered = Callable[[list[int], list[Settled], list[Settlement]], None]
LastWords = Callable[[Sequence[Settlement]], Awaitable[None]]
"""What is to be done before jobs are settled. It never raises."""


class Settler:
    """What waits here is bounded by the flight recorder: a job keeps its slot until its settlement is answered."""

    def __init__(self, engine: Engine, answered: Answered) -> None:
        self._engine = engine
        self._answered = answered
        self.last_words: LastWords | None = None
        self.is_awaited: Callable[[], bool] = lambda: False
        """Whether others can't start before these are settled."""
        self._slots: list[int] = []
        self._settlements: list[Settlement] = []
        self._under_way = 0
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    def add(self, slot: int, settlement: Settlement) -> None:
        if not self._settlements:
            self._filled.set()
            self._drained.clear()
        self._slots.append(slot)
        self._settlements.append(settlement)

    @property
    def is_empty(self) -> bool:
        return not self._settlements and not self._under_way

    async def drain(self) -> None:
        await self._drained.wait()

    async def run(self) -> None:
        """Those that come while a batch is on its way form the next one."""
        while True:
            await self._filled.wait()
            if self.is_awaited():
                await self._gather()
            slots, self._slots = self._slots[:LARGEST_SETTLEMENT], self._slots[LARGEST_SETTLEMENT:]
            settlements, self._settlements = (
                self._settlements[:LARGEST_SETTLEMENT],
                self._settlements[LARGEST_SETTLEMENT:],
            )
            if not self._settlements:
                self._filled.clear()
            self._under_way = len(settlements)
            if self.last_words is not None:
                await self.last_words(settlements)
            answers = await self._settle(settlements)
            self._under_way = 0
            self._answered(slots, answers, settlements)
            if self.is_empty:
                self._drained.set()

    async def _gather(self) -> None:
        """Let those come along that are about to end, since all of them wait for the same disk.

        Otherwise those of a few orders would go back and forth while all others wait for them.
        """
        patience = asyncio.get_running_loop().time() + _GATHER_FOR
        before = 0
        while before < len(self._settlements) < LARGEST_SETTLEMENT:
            before = len(self._settlements)
            if asyncio.get_running_loop().time() > patience:
                return
            await asyncio.sleep(0)

    async def _settle(self, settlements: list[Settlement]) -> list[Settled]:
        """Again and again: what has been settled is recognised, and what is not ours any more is refused."""
        pause = 0.05
        while True:
            try:
                return await self._engine.store.settle(settlements)
            except (StoreUnavailable, OutcomeUnknown) as error:
                log.warning("can't settle %d jobs, trying again: %s", len(settlements), error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, _LONGEST_PAUSE)
            except HoldfastError as error:
                if len(settlements) == 1:
                    # Nothing helps this one; the next beat finds that it is not held, and gives it back.
                    log.error("job %s can't be settled, it is given back: %s", settlements[0].id, error)
                    return [Settled.STALE]
                return [answer for each in settlements for answer in await self._settle([each])]
