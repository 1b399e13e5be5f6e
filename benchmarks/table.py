"""The rows of the report, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.rounds import Figure, Figures

_HEADINGS = ("measurement", "figure", "ours", "spread", "limit", "spread", "ours/limit", "goal", "")


@dataclass(frozen=True)
class Row:
    """One figure of one measurement. `is_met` is None where there is no goal."""

    measurement: str
    figure: str
    ours: Figure
    limit: Figure | None = None
    goal: str = ""
    is_met: bool | None = None

    @property
    def ratio(self) -> Figure | None:
        return None if self.limit is None else self.ours.over(self.limit)

    def cells(self) -> tuple[str, ...]:
        ratio = self.ratio
        verdict = {None: "", True: "met", False: "MISSED"}[self.is_met]
        return (
            self.measurement,
            self.figure,
            *_shown(self.ours),
            *(_shown(self.limit) if self.limit else ("", "")),
            "" if ratio is None else f"{ratio.median:.2f}",
            self.goal,
            verdict,
        )


def rows(measurement: str, figures: Figures, names: Sequence[str], limit: str = "limit") -> list[Row]:
    """A row for each of these figures, ours beside the limit, without goals."""
    return [
        Row(measurement, name, figures["ours"][name], figures[limit][name] if limit in figures else None)
        for name in names
    ]


def at_least(row: Row, part: float) -> Row:
    """The goal is a part of the limit."""
    assert row.ratio is not None
    is_met = row.ratio.median >= part
    return Row(row.measurement, row.figure, row.ours, row.limit, f">= {part:.0%} of limit", is_met)


def render(table: Sequence[Row]) -> str:
    """Plain text, in columns; names on the left, numbers on the right."""
    cells = [_HEADINGS, *(row.cells() for row in table)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
    numeric = range(2, 7)
    lines = [
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _shown(figure: Figure) -> tuple[str, str]:
    median = figure.median
    number = f"{median:,.0f}" if median >= 100 else f"{median:.2f}"
    return number, f"{figure.spread:.0%}"
