"""The scheduler: makes the jobs of ticks whose time has come.

Any number of them may run, and need not know of each other. Each looks which schedules are due, decides what their
ticks come to, and asks the store to do it. That does it for the first who asks; for the others the schedule has moved
on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from holdfast import schedule
from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.maintenance.service import SOONEST, HintedService
from holdfast.schedule import MOST_CAUGHT_UP, Fired, Firing, ScheduleRecord
from holdfast.store import HintKind, Store, TaskDefinition
from holdfast.tick import tick_job

log = logging.getLogger("holdfast.maintenance")

_LOOK_EVERY: Final = 10.0
"""Hints tell when a schedule has changed; this is for when they don't."""
_OFTEN: Final = 0.5
_EARLY: Final = 0.8
"""A nap is up to a fifth longer than was asked for, and a tick is not to be slept through."""
_BATCH: Final = 100
_PUT_OFF_FOR: Final = 30.0
"""Seconds after which one that could not be fired is tried again."""
_STUCK_FOR: Final = 1.0
"""The same, if somebody else's transaction was in its way."""


class Scheduler(HintedService):
    kind = HintKind.SCHEDULES

    def __init__(self, store: Callable[[], Store], clock: Clock, chance: Callable[[], float]) -> None:
        """`chance` gives random numbers from 0 to 1."""
        super().__init__(store)
        self._clock = clock
        self._chance = chance
        self._put_off: dict[str, float] = {}

    async def act(self) -> float:
        store = self._store()
        now = self._clock.monotonic()
        self._put_off = {name: until for name, until in self._put_off.items() if until > now}
        # Those that are put off must not keep the others from being seen.
        due = await store.due_schedules(min(_BATCH + len(self._put_off), 1_000))
        records = [record for record in due.schedules if record.name not in self._put_off]
        if not records:
            # While one is put off that is due, nobody says when the next of the others will be.
            return _OFTEN if due.schedules else _nap(due.next_in)
        for firings in _batches(await self._decide(store, records, due.now)):
            await self._fire(store, firings)
        return 0.0

    async def _decide(self, store: Store, records: Sequence[ScheduleRecord], now: datetime) -> list[Firing]:
        definitions: dict[str, TaskDefinition] = {}
        for published in await store.tasks(sorted({record.plan.task for record in records})):
            for name in (published.definition.name, *published.definition.aliases):
                definitions[name] = published.definition
        firings: list[Firing] = []
        for record in records:
            await asyncio.sleep(0)  # to find the ticks of a long time takes its time, and others share this loop
            task = definitions.get(record.plan.task)
            try:
                firing = None if task is None else self._firing(record, task, now)
            except Exception as error:  # a zone that this machine does not know, for example: the others go on
                self._give_up(record.name, str(error))
                continue
            if firing is not None:
                firings.append(firing)
            elif task is None:
                self._give_up(record.name, f"no worker has published its task {record.plan.task!r}")
        return firings

    def _firing(self, record: ScheduleRecord, task: TaskDefinition, now: datetime) -> Firing | None:
        passage = schedule.decide(record, now)
        if passage is None or record.next_tick is None:
            return None
        if passage.is_cut:
            log.warning(
                "schedule %s: more ticks were missed than the %d that are made up for; the oldest are dropped",
                record.name,
                MOST_CAUGHT_UP,
            )
        jobs = [tick_job(record, tick, task, self._chance()) for tick in passage.ticks]
        return Firing(record.name, record.revision, record.next_tick, passage, jobs)

    async def _fire(self, store: Store, firings: Sequence[Firing]) -> None:
        try:
            answers = await store.fire(firings)
        except StoreError:
            if len(firings) == 1:
                raise
            await self._fire_one_by_one(store, firings)
            return
        for firing, answer in zip(firings, answers, strict=True):
            if answer is Fired.SKIPPED:
                log.info("schedule %s: the job of an earlier tick is unfinished, this one is skipped", firing.schedule)

    async def _fire_one_by_one(self, store: Store, firings: Sequence[Firing]) -> None:
        """One that can't be done must not keep the others from it; if it is more than one, it is the database."""
        stuck: Firing | None = None
        for firing in firings:
            try:
                await self._fire(store, [firing])
            except StoreError as error:
                if stuck is not None:
                    raise
                stuck = firing
                self._give_up(firing.schedule, str(error), _STUCK_FOR)

    def _give_up(self, name: str, reason: str, span: float = _PUT_OFF_FOR) -> None:
        log.warning("schedule %s can't fire now: %s", name, reason)
        self._put_off[name] = self._clock.monotonic() + span


def _nap(next_in: timedelta | None) -> float:
    return _LOOK_EVERY if next_in is None else min(max(next_in.total_seconds() * _EARLY, SOONEST), _LOOK_EVERY)


def _batches(firings: Sequence[Firing]) -> Iterator[list[Firing]]:
    """With not too many jobs at once; those of one schedule stay together."""
    batch: list[Firing] = []
    for firing in firings:
        if batch and sum(len(each.jobs) for each in batch) + len(firing.jobs) > MOST_CAUGHT_UP:
            yield batch
            batch = []
        batch.append(firing)
    if batch:
        yield batch
