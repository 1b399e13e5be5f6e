"""One figure, taken in several rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.site import Sample


@dataclass(frozen=True)
class Figure:
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
        return Figure(
            [mine / theirs if theirs else 0.0 for mine, theirs in zip(self.values, other.values, strict=True)]
        )


Figures = dict[str, dict[str, Figure]]
"""By side, then by name of the figure."""


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
