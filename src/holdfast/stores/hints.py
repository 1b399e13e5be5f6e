"""Hints between the parts of one process: from whoever changed something to whoever waits for it, across loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from holdfast.native import make_lock
from holdfast.store import Hint, HintKind

_MOST_NAMED = 1000
"""A hint that would name more queues or jobs than this names none, which means all of them."""


class Subscription:
    """The hints that one waiter has not looked at yet: at most one of each kind, so it can't overflow."""

    def __init__(self, kinds: frozenset[HintKind]) -> None:
        self.kinds = kinds
        self._loop = asyncio.get_running_loop()
        self._pending: dict[HintKind, Hint] = {}
        self._arrived = asyncio.Event()

    def offer(self, hint: Hint) -> None:
        """Hand over a hint, from any thread."""
        if _is_running(self._loop):
            self._deliver(hint)  # without waking up a loop that is awake
            return
        try:
            self._loop.call_soon_threadsafe(self._deliver, hint)
        except RuntimeError:
            return  # the waiter's loop is closed, so nobody waits any more

    def _deliver(self, hint: Hint) -> None:
        earlier = self._pending.get(hint.kind)
        self._pending[hint.kind] = hint if earlier is None else merge(earlier, hint)
        self._arrived.set()

    def __aiter__(self) -> AsyncIterator[Hint]:
        return self

    async def __anext__(self) -> Hint:
        while not self._pending:
            self._arrived.clear()
            await self._arrived.wait()
        return self._pending.pop(next(iter(self._pending)))


class HintHub:
    """Passes each hint on to the waiters that asked for its kind."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._lock = make_lock()
        self.kinds: frozenset[HintKind] = frozenset()
        """The kinds of hints that anybody waits for."""

    @asynccontextmanager
    async def subscribe(self, kinds: Iterable[HintKind]) -> AsyncIterator[AsyncIterator[Hint]]:
        subscription = Subscription(frozenset(kinds))
        self._replace(lambda subscriptions: subscriptions | {subscription})
        try:
            yield subscription
        finally:
            self._replace(lambda subscriptions: subscriptions - {subscription})

    def _replace(self, change: Callable[[set[Subscription]], set[Subscription]]) -> None:
        """Replaced, never changed, so that other threads may walk over it."""
        with self._lock:
            self._subscriptions = change(self._subscriptions)
            self.kinds = frozenset(kind for subscription in self._subscriptions for kind in subscription.kinds)

    def publish(self, hints: Iterable[Hint]) -> None:
        """Pass hints on, from any thread."""
        waiting = self._subscriptions
        for hint in hints if waiting else ():
            for subscription in waiting:
                if hint.kind in subscription.kinds:
                    subscription.offer(hint)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is its thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def merge(one: Hint, other: Hint) -> Hint:
    """One hint that says at least what two of the same kind said."""
    queues = one.queues | other.queues if one.queues and other.queues else frozenset[str]()
    ids = one.ids | other.ids if one.ids and other.ids else frozenset()
    if len(queues) > _MOST_NAMED:
        queues = frozenset()
    if len(ids) > _MOST_NAMED:
        ids = frozenset()
    return Hint(one.kind, queues, ids)
