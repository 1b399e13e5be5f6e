"""What a measurement runs on: a database of its own, made by the host of its kind."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from benchmarks.limit import Limit
from holdfast import Retention
from holdfast.store import Store

Sample = dict[str, float]
"""What was found, by name of the figure."""


class Site(Protocol):
    """One database, empty at first. It can be handed to another process."""

    @property
    def url(self) -> str: ...

    def make_store(self, retention: Retention | None = None) -> Store: ...

    async def open_limit(self) -> Limit: ...

    async def fill(self, *, ready: int = 0, finished: int = 0) -> None:
        """Put jobs into the shipped schema as enqueuing and settling would have, with the bounds raised."""
        ...

    async def vitals(self) -> Sample:
        """How large it is, and what waits to be cleaned up."""
        ...

    async def span(self, *, is_warm: bool = False) -> tuple[int, float]:
        """How many jobs have ended, and the seconds from the first start to the last end.

        `is_warm`: those after the first quarter, from the end of that: while it was done, processes may have been on
        their way.
        """
        ...

    async def queries(self) -> float:
        """The statements that its server has executed so far; less than nothing where nobody counts them."""
        ...

    def server_cpu(self) -> float | None:
        """The CPU seconds that its server has spent so far; None where there is none."""
        ...


class Host(Protocol):
    """Makes databases of one kind on a real disk."""

    @property
    def name(self) -> str: ...

    def fresh(self) -> AbstractContextManager[Site]:
        """A database that is removed afterwards."""
        ...

    def describe(self) -> dict[str, Any]:
        """The versions and settings that figures depend on."""
        ...
