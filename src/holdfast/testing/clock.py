"""A clock that stands still until it is told otherwise."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from holdfast.span import Span, parse_span

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class ManualClock:
    """Time that passes only when a test says so. Any number of threads may read and move it."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._passed = timedelta(0)
        self._lock = threading.Lock()

    def now(self) -> datetime:
        with self._lock:
            return self._start + self._passed

    def monotonic(self) -> float:
        with self._lock:
            return self._passed.total_seconds()

    def advance(self, span: Span) -> datetime:
        """Let time pass, and return what the calendar says then."""
        step = parse_span(span, "advance(span)")
        with self._lock:
            self._passed += step
            return self._start + self._passed

    def jump(self, by: timedelta) -> datetime:
        """Put the calendar forward or back, while no time passes; and return what it says then."""
        with self._lock:
            self._start += by
            return self._start + self._passed

    def __repr__(self) -> str:
        return f"<ManualClock {self.now().isoformat()}>"
