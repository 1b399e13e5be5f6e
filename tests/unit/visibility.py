"""Who sees which row when: as much of PostgreSQL as the floors of claims depend on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from holdfast.stores.postgres.floors import Snapshot


class Stage(Enum):
    READY = "ready"
    TAKEN = "taken"
    GONE = "gone"


@dataclass(frozen=True)
class Version:
    """What one transaction made of a row."""

    writer: int
    stage: Stage
    lane: int
    place: int


@dataclass(eq=False)
class Row:
    versions: list[Version] = field(default_factory=list)
    locked_by: int | None = None


@dataclass(frozen=True)
class View:
    """What a statement goes by: transactions that ended before it began."""

    snapshot: Snapshot
    running: frozenset[int]


@dataclass
class Scan:
    """What one claim took: the lane and the place at which it saw each; and what it could not have, being locked."""

    taken: list[tuple[int, int]] = field(default_factory=list)
    skipped: list[Version] = field(default_factory=list)


class Database:
    """Rows, the transactions that write them, and one sequence of places."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.running: set[int] = set()
        self._aborted: set[int] = set()
        self._next_transaction = 3
        self._last_completed = 2
        self._last_place = 0

    # ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> int:
        """The number of a new transaction."""
        number, self._next_transaction = self._next_transaction, self._next_transaction + 1
        self.running.add(number)
        return number

    def end(self, transaction: int, is_committed: bool) -> None:
        self.running.discard(transaction)
        self._last_completed = max(self._last_completed, transaction)
        if not is_committed:
            self._aborted.add(transaction)
        for row in self.rows:
            if row.locked_by == transaction:
                row.locked_by = None
            if not is_committed:
                row.versions = [version for version in row.versions if version.writer != transaction]
        self.rows = [row for row in self.rows if row.versions]

    def view(self) -> View:
        """As GetSnapshotData does it: the upper end is one after the last that ended, not the next to begin."""
        upper = self._last_completed + 1
        running = frozenset(number for number in self.running if number < upper)
        return View(Snapshot(oldest=min(running, default=upper), next=upper), running)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def insert(self, transaction: int, lane: int) -> None:
        self.rows.append(Row([Version(transaction, Stage.READY, lane, self._draw())], transaction))

    def give_back(self, transaction: int, row: Row, lane: int) -> None:
        self._write(row, Version(transaction, Stage.READY, lane, self._draw()))

    def take(self, transaction: int, row: Row) -> None:
        latest = row.versions[-1]
        self._write(row, Version(transaction, Stage.TAKEN, latest.lane, latest.place))

    def finish(self, transaction: int, row: Row) -> None:
        latest = row.versions[-1]
        self._write(row, Version(transaction, Stage.GONE, latest.lane, latest.place))

    def free(self, stage: Stage) -> list[Row]:
        """Rows that a new transaction would find in this stage, unlocked."""
        return [row for row in self.rows if row.locked_by is None and row.versions[-1].stage is stage]

    def _write(self, row: Row, version: Version) -> None:
        assert row.locked_by is None
        row.versions.append(version)
        row.locked_by = version.writer

    def _draw(self) -> int:
        self._last_place += 1
        return self._last_place

    # ── claiming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, transaction: int, view: View, floors: Sequence[int], slots: int) -> Scan:
        """As claim.sql does it: what the view shows, in order; locked rows are skipped, changed ones looked at anew."""
        scan = Scan()
        for lane, floor in enumerate(floors):
            seen = [(self._seen(row, view), row) for row in self.rows]
            ready = [(version, row) for version, row in seen if version and _is_ready(version, lane, floor)]
            for version, row in sorted(ready, key=lambda each: each[0].place):
                if len(scan.taken) == slots:
                    return scan
                if row.locked_by is not None:
                    scan.skipped.append(version)
                elif _is_ready(row.versions[-1], lane, floor):
                    scan.taken.append((lane, version.place))
                    self.take(transaction, row)
        return scan

    def _seen(self, row: Row, view: View) -> Version | None:
        for version in reversed(row.versions):
            writer = version.writer
            if writer < view.snapshot.next and writer not in view.running and writer not in self._aborted:
                return version
        return None


def _is_ready(version: Version, lane: int, floor: int) -> bool:
    return version.stage is Stage.READY and version.lane == lane and version.place >= floor
