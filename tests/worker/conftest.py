"""Real workers on a file of the test's own; where the database matters, also on PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.history import VARIABLE, History
from tests.worker.program import Client, client_of

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


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
