"""The time, as something that is handed over. Nothing else in Holdfast reads it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two times that must not be mixed: what the calendar says, and how much has passed."""

    def now(self) -> datetime:
        """The calendar's time, in UTC. It may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. They never run backwards."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
