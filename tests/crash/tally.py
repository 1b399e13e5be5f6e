"""What the checker found in all tests together: a plugin of pytest that shows it at the end.

    pytest -p tests.crash.tally tests/crash tests/worker

A promise that was broken, or kept too late, also ends the run as failed; so does a run that does not come to its end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest

from tests.crash.checker import PROMISED, PROMISES, Fate, Findings, quantile

LATEST_KILL: Final = 1.0
"""Seconds after its hard timeout at which whoever overruns it is killed."""
_PROPERTY: Final = "findings"
_LONGEST_RUN: Final = 40 * 60
"""Seconds: twice as long as it takes."""
_kept: list[dict[str, Any]] = []
"""Of the test that runs, in a form that can be sent from one process of pytest to another."""
_tallies: dict[str, Tally] = {}
"""By database."""


def keep(url: str, findings: Findings) -> None:
    """Count them, for the kind of database that this URL names."""
    _kept.append(
        {
            "database": url.partition(":")[0],
            "jobs": findings.jobs,
            "runs": findings.runs,
            "broken": {promise: len(jobs) for promise, jobs in findings.broken.items()},
            "recovery": {fate.value: times for fate, times in findings.recovery.items()},
            "late": [],
        }
    )


def keep_kill(url: str, late: float) -> None:
    """Count a job that was stopped so many seconds after its hard timeout, by the worker's own record."""
    nothing: dict[str, Any] = {"jobs": 0, "runs": 0, "broken": {}, "recovery": {}}
    _kept.append({"database": url.partition(":")[0], **nothing, "late": [late]})


class Tally:
    """All that was found on one kind of database."""

    def __init__(self) -> None:
        self.jobs = 0
        self.runs = 0
        self.broken = dict.fromkeys(PROMISES, 0)
        self.recovery: dict[Fate, list[float]] = {fate: [] for fate in Fate}
        self.late: list[float] = []

    def add(self, kept: dict[str, Any]) -> None:
        self.jobs += kept["jobs"]
        self.runs += kept["runs"]
        for promise, number in kept["broken"].items():
            self.broken[promise] += number
        for fate, times in kept["recovery"].items():
            self.recovery[Fate(fate)] += times
        self.late += kept["late"]

    @property
    def is_clean(self) -> bool:
        is_late = any(max(times, default=0.0) > PROMISED[fate] for fate, times in self.recovery.items())
        is_late = is_late or max(self.late, default=0.0) > LATEST_KILL
        return not is_late and not any(self.broken.values())

    def lines(self) -> Iterator[str]:
        broken = ", ".join(f"{promise} {number}" for promise, number in self.broken.items())
        yield f"{self.jobs:,} jobs in {self.runs:,} runs: {broken}"
        for fate, times in self.recovery.items():
            yield f"  {fate:<20} {_row(times, PROMISED[fate])}"
        yield f"  {'hard timeout':<20} {_row(self.late, LATEST_KILL, 'killed after it')}"


def _row(times: list[float], promised: float, what: str = "runs again") -> str:
    if not times:
        return "not measured"
    shown = "  ".join(f"{name} {quantile(times, part):5.2f} s" for name, part in _QUANTILES)
    if math.isinf(promised):
        return f"{len(times):5} {what}  {shown}  until the next worker was started, and had taken over"
    verdict = "kept" if max(times) <= promised else "LATE"
    return f"{len(times):5} {what}  {shown}  promised {promised:2.0f} s: {verdict}"


_QUANTILES: Final = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


# ── hooks of pytest ──────────────────────────────────────────────────────────────────────────────────────────────────


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() - _started > _LONGEST_RUN:
        item.session.shouldfail = f"the run takes longer than {_LONGEST_RUN // 60} minutes"


_started: Final = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties += [(_PROPERTY, kept) for kept in _kept]
    _kept.clear()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, kept in report.user_properties:
        if name == _PROPERTY and report.when == "call":
            assert isinstance(kept, dict)
            _tallies.setdefault(kept["database"], Tally()).add(kept)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and not all(tally.is_clean for tally in _tallies.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    yield
    terminalreporter.section("what was broken, and how soon what was killed ran again")
    for database, tally in sorted(_tallies.items()):
        first, *rows = tally.lines()
        terminalreporter.write_line(f"{database}: {first}")
        for row in rows:
            terminalreporter.write_line(row)
