"""The limit: the barest Python loop over the shipped statements, on the shipped schema.

One connection, no checks, nothing that another caller would need. It makes ids and encodes arguments, since any
producer must. What ours reaches of it is what everything around the statements costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Claim(NamedTuple):
    """Jobs as the driver gave them, in the columns of claim.sql, and the token they are held by."""

    token: Any
    jobs: Sequence[Any]


class Limit(Protocol):
    """A program for one store. Who has no event loop to wait on does not wait on one."""

    async def enqueue(self, numbers: Sequence[int]) -> None: ...

    async def claim(self, slots: int) -> Claim: ...

    async def settle(self, claim: Claim) -> None: ...

    async def close(self) -> None: ...
