"""Steering circuit breakers: `hf.breakers`."""

from __future__ import annotations

import difflib

from holdfast import breaker
from holdfast.breaker import BreakerRecord
from holdfast.errors import BreakerNotFound
from holdfast.namespaces import Namespace
from holdfast.span import Span, parse_span
from holdfast.store import BreakerChange, check_name

Records = list[BreakerRecord]
"""Named here, because the namespace has a `list` of its own."""


class Breakers(Namespace):
    """What keeps failing is left alone: how the breakers stand, and what people do about it."""

    async def alist(self) -> list[BreakerRecord]:
        """All breakers that workers or others have declared or used, by name."""
        return self._learnt(await (await self._engine.ready()).breakers())

    def list(self) -> list[BreakerRecord]:
        """`alist` for synchronous code."""
        return self._engine.wait(self.alist(), "hf.breakers.alist")

    async def areset(self, name: str) -> BreakerRecord:
        """Close it at once, and forget its failures. Jobs that wait for it go on."""
        record = await self._change(name, lambda circuit, now: breaker.reset(circuit))
        await self._engine.panel.let_go(await self._engine.ready(), [name])
        return record

    def reset(self, name: str) -> BreakerRecord:
        """`areset` for synchronous code."""
        return self._engine.wait(self.areset(name), "hf.breakers.areset")

    async def aopen(self, name: str, span: Span | None = None) -> BreakerRecord:
        """Open it at once, for its reset time, or for a `span` in which the other side is known to be away."""
        wanted = None if span is None else parse_span(span, "span")
        return await self._change(name, lambda circuit, now: breaker.trip(circuit, now, wanted))

    def open(self, name: str, span: Span | None = None) -> BreakerRecord:
        """`aopen` for synchronous code."""
        return self._engine.wait(self.aopen(name, span), "hf.breakers.aopen")

    async def _change(self, name: str, change: BreakerChange) -> BreakerRecord:
        store = await self._engine.ready()
        if check_name(name, "name") in self._engine.breakers and not await store.breakers([name]):
            await self._engine.panel.declare(store, self._engine.panel.code_age)
        try:
            record = await store.change_breaker(name, change)
        except BreakerNotFound:
            raise BreakerNotFound(_unknown(name, [each.name for each in await store.breakers()])) from None
        return self._learnt([record])[0]

    def _learnt(self, records: Records) -> Records:
        """What a person was shown holds for this process from now on."""
        self._engine.panel.learn(record for record in records if record.name in self._engine.breakers)
        return records


def _unknown(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    hint = f"Did you mean {near[0]!r}?" if near else "Look for its name among hf.breakers.list()."
    return f"There is no breaker {name!r}. {hint}"
