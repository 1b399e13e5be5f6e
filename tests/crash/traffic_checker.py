"""Compares what tasks wrote down with the limits that they were under, and names every job that has passed one.

    crowded      more of its key ran at once than the limit lets
    hasty        more of its key started within a window than the rate lets
    disordered   of an order key: while another one of it ran, or after one that came later

What was killed ran until its kill. Whoever enqueued a job says what it was under, in the order of enqueuing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from uuid import UUID

from tests.worker.history import KILL, Event


@dataclass(frozen=True)
class LimitBound:
    key: str
    most: int


@dataclass(frozen=True)
class RateBound:
    key: str
    most: int
    per: float
    """Seconds."""


@dataclass(frozen=True)
class Bounds:
    """What one job is under."""

    limit: LimitBound | None = None
    rate: RateBound | None = None
    order: str | None = None


@dataclass(frozen=True)
class Run:
    """From the start of a task to its end, or to the kill of its process; for ever, if neither was written down."""

    job: UUID
    start: float
    end: float


def runs_of(events: Iterable[Event]) -> list[Run]:
    """In the order of their starts."""
    open_runs: dict[tuple[UUID, int], Event] = {}
    found: list[Run] = []
    for event in sorted(events, key=lambda event: event.at):
        if event.what == KILL:
            killed = [place for place in open_runs if place[1] == event.pid]
            found += [Run(place[0], open_runs.pop(place).at, event.at) for place in killed]
        elif event.job is not None and event.what == "start":
            open_runs[event.job, event.pid] = event
        elif event.job is not None and event.what == "end" and (event.job, event.pid) in open_runs:
            found.append(Run(event.job, open_runs.pop((event.job, event.pid)).at, event.at))
    found += [Run(job, event.at, math.inf) for (job, _), event in open_runs.items()]
    return sorted(found, key=lambda run: run.start)


def crowded(bounds: Mapping[UUID, Bounds], runs: Sequence[Run]) -> list[UUID]:
    found: list[UUID] = []
    running: dict[str, list[Run]] = {}
    for run in runs:
        limit = bounds.get(run.job, Bounds()).limit
        if limit is not None:
            here = [other for other in running.get(limit.key, []) if other.end > run.start]
            running[limit.key] = [*here, run]
            if len(here) >= limit.most:
                found.append(run.job)
    return found


def hasty(bounds: Mapping[UUID, Bounds], runs: Sequence[Run], lateness: float = 0.0) -> list[UUID]:
    """`lateness`: by how much longer one job may have taken from its claim to its start than another, if that is
    more than rates allow for, which is a 64th of their window.
    """
    found: list[UUID] = []
    starts: dict[str, list[float]] = {}
    for run in runs:
        rate = bounds.get(run.job, Bounds()).rate
        if rate is not None:
            mine = starts.setdefault(rate.key, [])
            mine.append(run.start)
            window = rate.per - max(0.0, lateness - rate.per / 64)
            if len(mine) > rate.most and run.start - mine[-rate.most - 1] < window:
                found.append(run.job)
    return found


def disordered(bounds: Mapping[UUID, Bounds], runs: Sequence[Run]) -> list[UUID]:
    found: list[UUID] = []
    places = {job: place for place, job in enumerate(bounds)}
    last: dict[str, Run] = {}
    for run in runs:
        order = bounds.get(run.job, Bounds()).order
        if order is not None:
            before = last.get(order)
            if before is not None and (before.end > run.start or places[before.job] > places[run.job]):
                found.append(run.job)
            last[order] = run
    return found


def used(starts: Iterable[float], most: int, per: float) -> float:
    """Which part of a rate was used while work waited: 1.0 if each started as soon as it could.

    From the last of the first window on: how fast these came is up to how many could be run at once.
    """
    ordered = sorted(starts)
    windows = len(ordered) / most - 1
    return per * windows / (ordered[-1] - ordered[most - 1])


def mostly_used(starts: Iterable[float], most: int, per: float) -> float:
    """The same by the window in the middle: a machine that stands still now and then does not count against it."""
    ordered = sorted(starts)
    return per / median(later - first for first, later in zip(ordered, ordered[most:], strict=False))
