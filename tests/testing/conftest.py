"""An app whose own database must not come into being."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    own = tmp_path / "own.db"
    yield Holdfast(f"sqlite:///{own}")
    assert not own.exists(), "the app's own store was used"
