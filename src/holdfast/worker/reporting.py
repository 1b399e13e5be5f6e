"""What running tasks say and ask through their contexts, on its way to and from the station.

Of each job's progress only the latest report is kept, and passed on twice a second, however often a task reports. What
a job said last is passed on before it is settled, so that whoever has its result sees it complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from holdfast.engine import Engine
from holdfast.job import ClaimedJob
from holdfast.store import LARGEST_BATCH, ProgressReport, Settlement
from holdfast.worker.runs import Run

if TYPE_CHECKING:
    from holdfast.worker.station import Station


_EVERY: Final = 0.5
_PATIENCE: Final = 1.0


class Reporting:
    """The surroundings of the jobs that run in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._station: Station | None = None
        self._loop = asyncio.get_running_loop()
        self._reports: dict[tuple[UUID, UUID], ProgressReport] = {}
        """By job and claim. Changed from any thread, one entry at a time."""
        self._is_awake = False
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()

    def attach(self, station: Station) -> None:
        self._station = station
        station.before_settling(self.tell_of)

    def _run(self, job: UUID) -> Run | None:
        return self._station.find(job) if self._station is not None else None

    def is_cancelled(self, job: UUID) -> bool:
        run = self._run(job)
        return run is None or run.stop is not None

    def deadline(self, job: UUID) -> datetime | None:
        run = self._run(job)
        if run is None:
            return None
        return self._engine.clock.now() + timedelta(seconds=run.started_at + run.plan.soft - time.monotonic())

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def report_progress(self, job: ClaimedJob, done: float, total: float | None, note: str) -> None:
        """From any thread, and as often as you like."""
        self._reports[job.id, job.token] = ProgressReport(job.id, job.token, done, total, note)
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its jobs are nobody's any more
                self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Pass on what is reported, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._is_awake = False  # before looking: what is reported from now on wakes us again
            await self._pass_on(list(self._reports))
            await asyncio.sleep(_EVERY)

    async def tell_of(self, settlements: Sequence[Settlement]) -> None:
        """Pass on the last words of jobs that are about to be settled. Never raises, nor holds them up for long."""
        if self._reports:
            await self._pass_on([(each.id, each.token) for each in settlements])

    async def _pass_on(self, claims: Iterable[tuple[UUID, UUID]]) -> None:
        # It is only progress: what can't be told now is told better later.
        with contextlib.suppress(Exception):
            # One after the other, so that no report arrives after a later one.
            async with asyncio.timeout(_PATIENCE), self._turn:
                reports = [report for claim in claims if (report := self._reports.pop(claim, None)) is not None]
                for start in range(0, len(reports), LARGEST_BATCH):
                    await self._engine.store.report_progress(reports[start : start + LARGEST_BATCH])
