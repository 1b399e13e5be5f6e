"""Real workers on a file of the test's own; where the database matters, also on PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.worker.history import VARIABLE, History
from tests.worker.program import Client, Program, client_of

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the worker said that several tests share."""
    report = yield
    program = getattr(item, "funcargs", {}).get("program")
    if report.when == "call" and report.failed and isinstance(program, Program):
        report.sections.append(("what the worker said", program.output[-5000:]))
    return report


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def client(url: str, history: History, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv(VARIABLE, str(history.path))
    with client_of(url, history) as client:
        yield client
