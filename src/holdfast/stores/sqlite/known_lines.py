"""What a connection remembers of lines from one transaction to the next."""

from __future__ import annotations

from typing import Final, TypeVar

from holdfast.gates import Gate, LineRule
from holdfast.turns import Line

_MOST: Final = 10_000
"""Of each kind. Beyond that, it begins anew."""

Entrance = tuple[LineRule, str, int]
"""Under which rules a job comes in, to which queue, with which priority."""
Name = TypeVar("Name")
Fact = TypeVar("Fact")


class KnownLines:
    """Only what was committed: after a rollback, the numbers of what it had made are given to others.

    What never changes is known for good: numbers are not given twice, so a line that others have forgotten is not there
    any more, and no other one is in its place. How lines and gates stand is known until somebody else writes.
    """

    def __init__(self) -> None:
        self.lines: dict[int, Line[int]] = {}
        self.gates: dict[int, Gate[int]] = {}
        self.numbers: dict[Entrance, int] = {}
        """The lines of jobs that come in so, where the gates have been told what the code says."""
        self.ways: dict[int, tuple[int, ...]] = {}
        """Through which gates lines lead."""
        self.line_behind: dict[int, int] = {}
        """Of gates: a line that leads through it, or did."""
        self.held: dict[int, bool] = {}
        """Of lines: whether their jobs take something from a gate that they give back."""
        self.ordered: dict[str, bool] = {}
        """Of queues: whether their lines led to orders, when last claimed from."""
        self._version: int | None = None

    def check(self, version: int) -> None:
        """`version` is another one if somebody else has written since the last transaction."""
        if version != self._version:
            self._version = version
            self.forget_states()

    def learn_states(self, lines: dict[int, Line[int]], gates: dict[int, Gate[int]]) -> None:
        version, self._version = self._version, None  # if this should fail halfway, it is not believed
        self.learn(self.lines, lines)
        self.learn(self.gates, gates)
        self._version = version

    def forget_states(self) -> None:
        self.lines.clear()
        self.gates.clear()

    def learn(self, known: dict[Name, Fact], news: dict[Name, Fact]) -> None:
        if len(known) + len(news) > _MOST:
            known.clear()
        known.update(news)
