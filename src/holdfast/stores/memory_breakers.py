"""The breakers of the memory store. Whoever uses this has the store's lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from holdfast import breaker
from holdfast.breaker import Admission, BreakerPolicy, BreakerRecord, BreakerReport, BreakerState, Circuit
from holdfast.errors import BreakerNotFound
from holdfast.store import BreakerChange


class MemoryBreakers:
    """Breakers in a dictionary, by name."""

    def __init__(self, tell: Callable[[], None]) -> None:
        """`tell` is called when others must know of a change."""
        self._tell = tell
        self._circuits: dict[str, Circuit] = {}

    def declare(self, policies: Mapping[str, BreakerPolicy], code_from: datetime, now: datetime) -> list[BreakerRecord]:
        for name, policy in policies.items():
            self._put(breaker.declare(self._circuits.get(name), name, policy, code_from))
        return self.listed(list(policies), now)

    def listed(self, names: Sequence[str] | None, now: datetime) -> list[BreakerRecord]:
        wanted = sorted(self._circuits if names is None else set(names) & self._circuits.keys())
        return [breaker.seen(self._circuits[name], now) for name in wanted]

    def enter(self, name: str, id: UUID, now: datetime) -> Admission:
        after, admission = breaker.admit(self._find(name), id, now)
        self._put(after)
        return admission

    def report(self, reports: Sequence[BreakerReport], now: datetime) -> list[BreakerRecord]:
        for circuit in breaker.note_all(self._circuits, reports, now).values():
            self._put(circuit)
        return self.listed([report.breaker for report in reports], now)

    def change(self, name: str, change: BreakerChange, now: datetime) -> BreakerRecord:
        after = change(self._find(name), now)
        self._put(after)
        return breaker.seen(after, now)

    def is_closed(self, name: str, now: datetime) -> bool:
        circuit = self._circuits.get(name)
        return circuit is not None and breaker.state_of(circuit, now) is BreakerState.CLOSED

    def _find(self, name: str) -> Circuit:
        if name not in self._circuits:
            raise BreakerNotFound
        return self._circuits[name]

    def _put(self, circuit: Circuit) -> None:
        before = self._circuits.get(circuit.name)
        self._circuits[circuit.name] = circuit
        if before is None or breaker.is_news(before, circuit):
            self._tell()
