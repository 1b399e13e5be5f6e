"""Processes that wait for something that another one does."""

from __future__ import annotations

import asyncio
import contextlib
import functools

from holdfast import Holdfast, Queue, engine, waiting
from holdfast.store import HintKind
from holdfast.stores.sqlite import SqliteStore, doorbell
from tests.crash.audit import QUEUE, TASK
from tests.crash.line import Line

_NEVER = 3600.0


def _only_bells() -> None:
    """Nobody looks by himself any more: without a bell, all waiting is in vain."""
    waiting.LOOK_EVERY = _NEVER
    engine._LOOK_FOR_ROOM_EVERY = _NEVER
    doorbell.Ear = functools.partial(doorbell.Ear, look_every=_NEVER)  # type: ignore[assignment,misc]


def wait_for_result(line: Line, path: str, id: str) -> None:
    _only_bells()
    app = Holdfast(f"sqlite:///{path}")
    line.say("ready")
    line.say("done", result=app.job(id).result(timeout="10m"))
    line.hear("nothing more")


def wait_for_room(line: Line, path: str) -> None:
    """Enqueue into a queue that has room for one."""
    _only_bells()
    app = Holdfast(f"sqlite:///{path}", queues=[Queue(QUEUE, bound=1)])

    @app.task(name=TASK, queue=QUEUE)
    def crash(key: str) -> None: ...

    crash.enqueue("first")
    line.say("ready")
    crash.options(wait="10m").enqueue("second")
    line.say("done")
    line.hear("nothing more")


async def wait_for_work(line: Line, path: str, queue: str) -> None:
    """Say when a hint has come that there may be work in this queue. The first look always gives one."""
    store = SqliteStore(path)
    async with store.changes([HintKind.WORK]) as hints:
        async for hint in hints:
            if not hint.queues:
                break
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await anext(hints)
        line.say("ready")
        async for hint in hints:
            if not hint.queues or queue in hint.queues:
                break
        line.say("done")
        line.hear("nothing more")


async def wait_for_ever(line: Line, path: str) -> None:
    """Put up a bell for everything, and never take it down."""
    store = SqliteStore(path)
    async with store.changes(list(HintKind)):
        line.say("ready")
        line.hear("nothing more")
