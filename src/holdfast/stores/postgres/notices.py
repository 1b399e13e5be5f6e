"""Hints between processes, by NOTIFY and LISTEN.

NOTIFY takes a lock on the whole cluster when its transaction commits, so it hardly ever stands in one that waits for
the disk: a hint is sent after the commit, by itself. While one is under way, others gather and are merged. Only jobs
that are enqueued while nobody else does so are announced in their own transaction: see insert_jobs.sql. Each kind of
hint has a channel of its own, so that nobody is woken up for what he does not wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from holdfast.store import Hint, HintKind
from holdfast.stores.hints import HintHub, merge
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.statements import statement

MOST_NAMED = 150
_LARGEST = 7_900
"""A payload has less than 8,000 bytes. A hint that would be larger names nothing, which means all."""
_LOOK_EVERY = 15.0
_LOOK_ALONE_EVERY = 1.0
_LONGEST_PAUSE = 2.0
_LINGER = 30.0
"""Seconds to go on listening when nobody waits any more: whoever waits for one job mostly waits for another soon."""


class Notice(msgspec.Struct, array_like=True):
    """A hint on its way."""

    sender: UUID
    kind: HintKind
    queues: list[str]
    ids: list[UUID]


_notices = msgspec.json.Decoder(Notice)


def channel_of(kind: HintKind) -> str:
    return f"holdfast_{kind}"


def encode(hint: Hint, sender: UUID) -> str:
    payload = b""
    if len(hint.queues) + len(hint.ids) <= MOST_NAMED:
        payload = msgspec.json.encode(Notice(sender, hint.kind, sorted(hint.queues), list(hint.ids)))
    if not payload or len(payload) > _LARGEST:
        payload = msgspec.json.encode(Notice(sender, hint.kind, [], []))
    return payload.decode()


def decode(payload: str, sender: UUID) -> Hint | None:
    """A hint of somebody else; None for our own, which have been passed on already, and for what nobody understands."""
    try:
        notice = _notices.decode(payload)
    except msgspec.DecodeError:
        return None
    if notice.sender == sender:
        return None
    return Hint(notice.kind, frozenset(notice.queues), frozenset(notice.ids))


class Messenger:
    """Sends the hints of one event loop to other processes, one message at a time."""

    def __init__(self, sender: UUID, run: Callable[[Callable[[Connection], Awaitable[None]]], Awaitable[None]]) -> None:
        self._sender = sender
        self._run = run
        self._pending: dict[HintKind, Hint] = {}
        self._task: asyncio.Task[None] | None = None

    def encode(self, hint: Hint) -> str:
        return encode(hint, self._sender)

    def send(self, hints: Iterable[Hint]) -> None:
        for hint in hints:
            earlier = self._pending.get(hint.kind)
            self._pending[hint.kind] = hint if earlier is None else merge(earlier, hint)
        if self._pending and not self._is_sending:
            self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            while self._pending:
                hints, self._pending = self._pending, {}
                channels = [channel_of(kind) for kind in hints]
                payloads = [self.encode(hint) for hint in hints.values()]
                with contextlib.suppress(Exception):  # hints may be lost: whoever waits also looks now and then
                    await self._run(partial(_notify, channels, payloads))
        finally:
            self._task = None

    async def drain(self) -> None:
        while self._task is not None and self._is_sending:
            await asyncio.wait([self._task])

    @property
    def _is_sending(self) -> bool:
        """A task that its event loop cancels before it has begun ends without a word."""
        return self._task is not None and not self._task.done()


async def _notify(channels: list[str], payloads: list[str], connection: Connection) -> None:
    await connection.execute(statement("notify"), channels, payloads)


class Listener:
    """Passes on what others send, while anybody waits on this event loop, and for a while after that.

    It comes back when its connection is lost.
    """

    def __init__(self, sender: UUID, hub: HintHub, connect: Callable[[], Awaitable[Connection | None]]) -> None:
        """`connect` gives None where nobody can listen, behind a pooler."""
        self._sender = sender
        self._hub = hub
        self._connect = connect
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._leave: asyncio.TimerHandle | None = None
        self._kinds: frozenset[HintKind] = frozenset()
        """Those that are listened for, and those that have to be."""
        self._is_ready = asyncio.Event()
        self._news = asyncio.Event()

    @asynccontextmanager
    async def listening(self, kinds: Iterable[HintKind]) -> AsyncIterator[None]:
        self._users += 1
        self._stay()
        self._listen_for(frozenset(kinds))
        try:
            if self._task is None or self._task.done() or self._task.cancelling():
                self._is_ready.clear()
                self._task = asyncio.create_task(self._serve())
            # Whoever looks after this sees everything that no hint will tell of. Without a server, polling must do.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await self._is_ready.wait()
            yield
        finally:
            self._users -= 1
            if not self._users and self._task is not None:
                self._stay()
                self._leave = asyncio.get_running_loop().call_later(_LINGER, self._task.cancel)

    def _listen_for(self, kinds: frozenset[HintKind]) -> None:
        if not kinds <= self._kinds:
            self._kinds |= kinds
            self._is_ready.clear()
            self._news.set()

    def _stay(self) -> None:
        if self._leave is not None:
            self._leave.cancel()
            self._leave = None

    async def stop(self) -> None:
        self._stay()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _serve(self) -> None:
        pause, is_first = 0.05, True
        while True:
            try:
                connection = await self._connect()
                if connection is None:
                    self._kinds = frozenset(HintKind)
                    self._is_ready.set()
                    await self._look_around()
                    return
                pause = 0.05
                await self._listen(connection, is_first=is_first)
            except Exception:
                pass  # it is lost, or there is none: try again
            is_first = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _look_around(self) -> None:
        """Nobody can tell, so whoever waits is told to look, once a second."""
        while True:
            await asyncio.sleep(_LOOK_ALONE_EVERY * random.uniform(0.75, 1.25))
            self._hub.publish([Hint(kind) for kind in self._hub.kinds])

    async def _listen(self, connection: Connection, *, is_first: bool) -> None:
        raw = connection.raw
        raw.add_termination_listener(lambda _: self._news.set())
        heard: frozenset[HintKind] = frozenset()
        try:
            while not raw.is_closed():
                self._news.clear()
                for kind in self._kinds - heard:
                    await raw.add_listener(channel_of(kind), self._on_notice)
                    heard |= {kind}
                if not is_first:  # what was sent while nobody listened is gone
                    self._hub.publish([Hint(kind) for kind in self._hub.kinds])
                    is_first = True
                if heard >= self._kinds:
                    self._is_ready.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY):
                        await self._news.wait()
                        continue
                await raw.fetchval("select 1", timeout=5)  # a peer that is gone does not always say so
        finally:
            self._is_ready.clear()
            await connection.close()

    def _on_notice(self, _connection: Any, _process: int, _channel: str, payload: object) -> None:
        hint = decode(str(payload), self._sender)
        if hint is not None:
            self._hub.publish([hint])
