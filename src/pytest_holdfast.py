"""The pytest plugin of Holdfast: the fixture `holdfast_testing`.

It stands beside the package, not in it: pytest imports all plugins that are installed, and a test run that has nothing
to do with Holdfast must not pay for importing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.testing import Rehearsal

__all__ = ["EnterTesting", "holdfast_testing"]


class EnterTesting(Protocol):
    """What the fixture is: a function that enters `app.testing(…)` until the test is over."""

    def __call__(self, app: Holdfast, /, url: str | None = None, *, inline: bool = False) -> Rehearsal:
        """Enter, and return the `t` of `with app.testing(…) as t`."""
        ...


@pytest.fixture
def holdfast_testing() -> Iterator[EnterTesting]:
    """`t = holdfast_testing(hf)` is `with hf.testing() as t:` for the rest of the test. Also for several apps."""
    with ExitStack() as entered:

        def enter(app: Holdfast, /, url: str | None = None, *, inline: bool = False) -> Rehearsal:
            return entered.enter_context(app.testing(url, inline=inline))

        yield enter
