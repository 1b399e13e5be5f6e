"""The pruner: deletes what is past its retention, a little at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.maintenance.service import Service
from holdfast.store import Store

_EVERY: Final = 60.0
_BETWEEN_BATCHES: Final = 0.05


class Pruner(Service):
    def __init__(self, store: Callable[[], Store]) -> None:
        super().__init__()
        self._store = store

    async def act(self) -> float:
        pruned = await self._store().prune()
        return _EVERY if pruned.is_done else _BETWEEN_BATCHES
