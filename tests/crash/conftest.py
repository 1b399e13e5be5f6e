"""Fixtures of the crash tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.nursery import Nursery

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may write to, also on the way to it: pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="holdfast-crash-") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)
