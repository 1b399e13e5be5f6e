"""The rows of the report, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.figures import Figure, Figures

_HEADINGS = ("measurement", "store", "figure", "ours", "spread", "limit", "spread", "ours/limit", "goal", "")
_NUMERIC = range(3, 8)


@dataclass(frozen=True)
class Row:
    """One figure of one measurement. `is_met` is None where there is no goal."""

    measurement: str
    store: str
    figure: str
    ours: Figure
    limit: Figure | None = None
    goal: str = ""
    is_met: bool | None = None

    @property
    def ratio(self) -> Figure | None:
        return None if self.limit is None else self.ours.over(self.limit)

    def with_goal(self, goal: str, is_met: bool) -> Row:
        return replace(self, goal=goal, is_met=is_met)

    def cells(self) -> tuple[str, ...]:
        ratio = self.ratio
        verdict = {None: "", True: "met", False: "MISSED"}[self.is_met]
        return (
            self.measurement,
            self.store,
            self.figure,
            *_shown(self.ours),
            *(_shown(self.limit) if self.limit else ("", "")),
            "" if ratio is None else f"{ratio.median:.2f}",
            self.goal,
            verdict,
        )


@dataclass(frozen=True)
class Findings:
    """What a measurement found: rows for the table, and notes that don't fit into it."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def rows(
    measurement: str, store: str, figures: Figures, names: Sequence[str], *, ours: str = "ours", limit: str = "limit"
) -> list[Row]:
    """A row for each of these figures that was taken, one side beside the other, without goals."""
    beside = figures.get(limit, {})
    return [
        Row(measurement, store, name, figures[ours][name], beside.get(name)) for name in names if name in figures[ours]
    ]


def at_least(row: Row, part: float) -> Row:
    """The goal is a part of the limit."""
    assert row.ratio is not None
    return row.with_goal(f">= {part:.0%} of limit", row.ratio.median >= part)


def render(table: Sequence[Row]) -> str:
    """Plain text, in columns; names on the left, numbers on the right."""
    cells = [_HEADINGS, *(row.cells() for row in table)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in _NUMERIC else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _shown(figure: Figure) -> tuple[str, str]:
    median = figure.median
    if median >= 100 or median == int(median):
        number = f"{median:,.0f}"
    else:
        number = f"{median:.2f}" if median >= 1 else f"{median:.3g}"
    return number, f"{figure.spread:.0%}"
