"""What running tasks say and ask through their contexts, on its way to and from the station."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.engine import Engine
from holdfast.worker.runs import Run

if TYPE_CHECKING:
    from holdfast.worker.station import Station


class Reporting:
    """The surroundings of the jobs that run in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._station: Station | None = None

    def attach(self, station: Station) -> None:
        self._station = station

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

    def report_progress(self, job: UUID, done: float, total: float | None, note: str) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        await asyncio.Event().wait()
