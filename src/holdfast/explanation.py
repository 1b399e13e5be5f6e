"""The answer to "why does this job not run": a sentence for people, and the reasons one by one for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from holdfast.job import JobState


class ReasonKind(StrEnum):
    """Why a job waits; or, from `running` on, what became of it."""

    EXPIRED = "expired"
    PAUSED = "paused"
    SCHEDULED = "scheduled"
    RETRY = "retry"
    SNOOZED = "snoozed"
    NO_WORKER = "no_worker"
    UNKNOWN_TASK = "unknown_task"
    BREAKER = "breaker"
    ORDER = "order"
    LIMIT = "limit"
    RATE = "rate"
    TURN = "turn"
    POSITION = "position"
    CANCELLING = "cancelling"
    LOST = "lost"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEAD = "dead"


@dataclass(frozen=True)
class Reason:
    """One thing that holds: in words, and what a program needs of it. `until` is when it ends, if that is known."""

    kind: ReasonKind
    text: str
    until: datetime | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """Why a job does not run, or what it does, as of one moment. Printed, it is a sentence.

    The reasons all hold; the first one decides.
    """

    id: UUID
    state: JobState
    at: datetime
    text: str
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        return self.text

    @property
    def kinds(self) -> tuple[ReasonKind, ...]:
        """The kinds of the reasons, the decisive one first."""
        return tuple(reason.kind for reason in self.reasons)


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_UNITS = ((86400, "days"), (3600, "h"), (60, "min"))
_LONGEST_QUOTE = 120


def about(span: timedelta) -> str:
    """A length of time as people say it: "~12 s", "~3 min", "~5 h", "~4 days"."""
    seconds = max(span.total_seconds(), 0.0)
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"~{round(seconds / length)} {unit}"
    return f"~{round(seconds)} s" if seconds >= 1 else "<1 s"


def moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%SZ}"


def quoted(text: str, longest: int = _LONGEST_QUOTE) -> str:
    """What somebody else wrote, on one line, and not for ever."""
    shown = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def jobs(number: int, most: int) -> str:
    """So many jobs, of which no more than `most` were counted."""
    return "1 job" if number == 1 else f"{number:,}{'+' if number >= most else ''} jobs"
