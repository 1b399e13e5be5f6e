"""How much is tried: enough to notice a break on every run, twenty times as much with HOLDFAST_THOROUGH=1."""

from __future__ import annotations

import os
from typing import Final, NoReturn

import pytest

IS_THOROUGH: Final = os.environ.get("HOLDFAST_THOROUGH") == "1"


def rounds(few: int) -> int:
    return few * 20 if IS_THOROUGH else few


EPISODES: Final = pytest.mark.parametrize("episode", range(rounds(1)))
"""Each on files of its own: a test that goes on for long would fill its queue, and check all that it has over again."""


def cannot(reason: str) -> NoReturn:
    """Skip, loudly: where it counts, a test that can't run has failed."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must be able to run this: {reason}")
    pytest.skip(f"NOT TESTED: {reason}")
