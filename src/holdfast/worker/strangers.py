"""Jobs of tasks that this worker does not know, as in a rolling deploy: they are given back, for others who do.

A worker may know a task that the code on disk does not have any more, or not yet: processes for isolated jobs start
from that. So a name may be a stranger's for a while, and then not.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from holdfast.engine import Engine
from holdfast.job import ClaimedJob, Failure, FailureKind
from holdfast.lifecycle import Bury, GiveBack, Transition, pause_of
from holdfast.retry import Retry
from holdfast.worker.recorder import Place, describe_task

log = logging.getLogger("holdfast.worker")

PATIENCE: Final = timedelta(hours=1)
"""How long a job is kept for others, who may have the code that it needs."""
_MOST: Final = 1000


class Strangers:
    """Remembers since when each unknown name has been coming."""

    described: Final = describe_task("", Place.LOOP, Retry())

    def __init__(self, engine: Engine) -> None:
        self._clock = engine.clock
        self._since: dict[str, float] = {}

    def turn_away(self, job: ClaimedJob, where: str = "here") -> Transition:
        """Give it back uncharged, for a while that grows; bury it when nobody has known its task for an hour."""
        now = self._clock.monotonic()
        if job.task not in self._since:
            log.warning("there is no task %r %s: its jobs are given back, for a worker that knows it", job.task, where)
            if len(self._since) >= _MOST:
                self._since.clear()
        met_for = timedelta(seconds=now - self._since.setdefault(job.task, now))
        failure = Failure(
            FailureKind.INVALID,
            "UnknownTask",
            f"No worker that was asked knows a task {job.task!r}. Start one that has its code.",
        )
        if min(met_for, self._clock.now() - job.created_at) >= PATIENCE:
            return Bury(failure)
        return GiveBack(pause_of(job), failure=failure, has_waited=True, is_unstarted=True)

    def recognise(self, task: str) -> None:
        """It is known after all. If it is not some other time, the hour begins anew."""
        self._since.pop(task, None)
