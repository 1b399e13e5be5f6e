"""The herald: says again and again which schedules the code has that is running here.

A schedule that nobody speaks of any more makes no jobs after a while: it has gone from the code, or nobody is there
who could run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from holdfast.clock import Clock
from holdfast.maintenance.service import Service
from holdfast.schedule import DECLARED_EVERY, Plan
from holdfast.store import Store

Declaration = tuple[Mapping[str, Plan], float]
"""The schedules of some code, and since when it has been running, by the monotonic clock."""


class Herald(Service):
    def __init__(
        self, store: Callable[[], Store], clock: Clock, declarations: Callable[[], Iterable[Declaration]]
    ) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._declarations = declarations

    async def act(self) -> float:
        for plans, code_since in self._declarations():
            if plans:
                age = timedelta(seconds=max(self._clock.monotonic() - code_since, 0.0))
                await self._store().declare_schedules(plans, age)
        return DECLARED_EVERY.total_seconds()
