"""Holdfast's tables in one database: what is there, what is missing, what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True)
class Step:
    """A migration, without what it does."""

    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.number:04} {self.name}"


class Severity(StrEnum):
    WRONG = "wrong"
    """Jobs can be lost or refused until it is mended."""
    WARNING = "warning"
    """It works, but hardly as it was meant."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True)
class Finding:
    """Something worth saying about an installation, and what to do about it."""

    severity: Severity
    problem: str
    advice: str


@dataclass(frozen=True)
class Report:
    """What a check has found, the worst first."""

    server: str
    schema: int | None
    """The number of the last migration that was applied, as far as this role may know."""
    needed: int
    findings: Sequence[Finding]

    @property
    def is_good(self) -> bool:
        return all(finding.severity is not Severity.WRONG for finding in self.findings)


class Installation(Protocol):
    """One database, as its owner sees it. StoreUnavailable wherever it can't be reached."""

    @property
    def place(self) -> str:
        """Where it is, for messages: without secrets."""
        ...

    @property
    def steps(self) -> Sequence[Step]:
        """All migrations of this version, in order."""
        ...

    async def schema(self) -> int | None:
        """The number of the last migration that was applied; None if the database would have to be created first."""
        ...

    async def migrate(self, tell: Callable[[str], None]) -> Sequence[Step]:
        """Bring it up to date, and return what was applied. `tell` is told what is waited for.

        Raises SchemaTooNew if a newer version has been here, and SchemaOutdated if this role may not change tables.
        """
        ...

    def script(self, after: int) -> str:
        """The SQL that brings a database from schema `after` to the newest. Nothing is connected to."""
        ...

    async def check(self) -> Report:
        """Compare what is there with what this version needs. Nothing is changed."""
        ...


_ORDER = list(Severity)


def sorted_findings(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def judge_schema(number: int, needed: int) -> Finding:
    """Of a database whose tables are not those of this version."""
    if not number:
        return Finding(Severity.WRONG, "Holdfast's tables are not there.", "Make them: holdfast db migrate")
    if number < needed:
        return Finding(
            Severity.WRONG,
            f"The database has schema {number}, and this version of Holdfast needs {needed}.",
            "Bring it up to date: holdfast db migrate",
        )
    return Finding(
        Severity.WRONG,
        f"The database has schema {number}, and this version of Holdfast knows {needed}.",
        "Upgrade the holdfast package here.",
    )
