"""Rounds: the sides of a measurement take turns, each time on a fresh file, and are compared within a round."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.database import fresh

Sample = dict[str, float]
"""What one side reached in one round, by name of the figure."""
Side = Callable[[Path], Sample]


@dataclass(frozen=True)
class Figure:
    """One figure over all rounds."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """From the lowest to the highest, as a part of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    def over(self, other: Figure) -> Figure:
        """The ratio within each round: what disturbs a round disturbs both sides."""
        return Figure([mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)])


Figures = dict[str, dict[str, Figure]]
"""By side, then by name of the figure."""


def alternate(sides: Mapping[str, Side], rounds: int, folder: Path) -> Figures:
    """Run each side once a round, in alternating order."""
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(list(sides)))
        for name in order:
            with fresh(folder) as path:
                gc.collect()
                samples[name].append(sides[name](path))
    return {name: _by_figure(taken) for name, taken in samples.items()}


def _by_figure(samples: Sequence[Sample]) -> dict[str, Figure]:
    return {name: Figure([sample[name] for sample in samples]) for name in samples[0]}


RATE = ("jobs/s", "cpu us/job")


class Stopwatch:
    """Time and CPU time of a block. CPU time is less disturbed by whatever else the machine does."""

    def __enter__(self) -> Self:
        self._cpu = time.process_time()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.cpu_seconds = time.process_time() - self._cpu

    def rate(self, jobs: int) -> Sample:
        """Jobs per second, and what each cost of CPU time: the RATE figures."""
        return {"jobs/s": jobs / self.seconds, "cpu us/job": self.cpu_seconds / jobs * 1e6}


def percentiles(seconds: Sequence[float]) -> Sample:
    ordered = sorted(seconds)
    return {
        "p50 ms": ordered[_rank(ordered, 0.50)] * 1e3,
        "p99 ms": ordered[_rank(ordered, 0.99)] * 1e3,
        "max ms": ordered[-1] * 1e3,
    }


def _rank(ordered: Sequence[float], part: float) -> int:
    """The nearest rank: at least that part of all values is not above it."""
    return max(math.ceil(part * len(ordered)) - 1, 0)
