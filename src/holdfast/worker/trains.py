"""Trains: jobs of one order that one worker has in hand, each of which may start when the one before it is completed.

Completed means that the store has said so: if this process dies, none of them has run before one that has to run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.job import ClaimedJob
from holdfast.worker.runs import Run


class Trains:
    """All that wait behind another one, by the recorder's slot of that. It never holds more than the recorder."""

    def __init__(self) -> None:
        self._behind: dict[int, Run] = {}

    def __bool__(self) -> bool:
        return bool(self._behind)

    def __contains__(self, slot: int) -> bool:
        """Whether somebody waits behind the job in this slot."""
        return slot in self._behind

    def add(self, slot: int, run: Run) -> None:
        """It waits behind the job in this slot."""
        self._behind[slot] = run

    def next_after(self, slot: int) -> Run:
        """The one that waits behind the job in this slot. It waits no more."""
        return self._behind.pop(slot)

    def all_after(self, slot: int) -> list[Run]:
        """All that wait behind the job in this slot, in their order. They wait no more."""
        found: list[Run] = []
        while (run := self._behind.pop(slot, None)) is not None:
            found.append(run)
            slot = run.slot
        return found

    def take(self, is_wanted: Callable[[ClaimedJob], bool]) -> list[Run]:
        """Those that are wanted, in the order of each train. They wait no more; others behind them do."""
        found = {slot: run for slot, run in self._behind.items() if is_wanted(run.job)}
        for slot in found:
            del self._behind[slot]
        return list(found.values())

    def __iter__(self) -> Iterator[Run]:
        return iter(self._behind.values())

    def fetched_before(self, time: float) -> list[Run]:
        """Everybody who was fetched before this, in the order of each train. They wait no more."""
        late = [slot for slot, run in self._behind.items() if run.fetched_at < time]
        return [run for slot in late for run in self.all_after(slot)]

    def pools_waiting_since(self, time: float) -> set[int]:
        """The pools of those who were fetched before this."""
        return {run.pool for run in self._behind.values() if run.fetched_at < time}
