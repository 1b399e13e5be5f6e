"""Attempts to connect, which come to their end whatever becomes of those who wait for them.

Cancelled at the wrong moment, the driver complains of what becomes of its half of a connection. So nobody cancels an
attempt, not even an event loop that comes to its end: it waits for those that are under way. A fork waits for those of
other threads, too: nobody but the driver knows their sockets yet, so the child could not let go of them.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import tasks
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

import asyncpg

from holdfast import forks
from holdfast.stores.postgres import inherited
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.faults import NoConnection

Attempt: TypeAlias = "asyncio.Task[asyncpg.Connection[Any]]"

_PATIENCE = 1.0
"""Seconds that an attempt is given when its event loop comes to its end."""

_FORK_PATIENCE = 1.0
"""Seconds that a fork waits for attempts. A server that does not answer must not hold up who forks."""
_MOMENT = 0.001

_under_way: dict[asyncio.AbstractEventLoop, set[Attempt]] = {}
_keepers: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}


async def connect_raw(address: Address, statement_cache: int) -> asyncpg.Connection[Any]:
    """Connect, or raise NoConnection."""
    while _turnstile.is_shut:  # noqa: ASYNC110 - whoever forks is in another thread
        await asyncio.sleep(_MOMENT)
    attempts = await _attempts_here()
    attempt = asyncio.create_task(_connect(address, statement_cache))
    tasks._unregister_task(attempt)  # those that are registered are cancelled when the loop comes to its end
    attempts.add(attempt)
    attempt.add_done_callback(attempts.discard)
    try:
        return await asyncio.shield(attempt)
    except asyncio.CancelledError:
        attempt.add_done_callback(_drop)
        raise
    except Exception as error:
        raise NoConnection from error


async def _connect(address: Address, statement_cache: int) -> asyncpg.Connection[Any]:
    address.check_files()
    connection = await asyncpg.connect(
        address.url,
        timeout=address.connect_timeout,
        statement_cache_size=statement_cache,
        server_settings=None if "application_name=" in address.url else {"application_name": "holdfast"},
    )
    # When the driver looks up a type, it switches jit off for the session, and behind a pooler that is not ours.
    connection._server_caps = connection._server_caps._replace(jit=False)  # type: ignore[attr-defined]
    inherited.remember(connection)
    return connection


class _Turnstile:
    """Keeps attempts and forks apart."""

    def __init__(self) -> None:
        self.is_shut = False
        forks.watch(self)

    def before_fork(self) -> None:
        self.is_shut = True
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        deadline = time.monotonic() + _FORK_PATIENCE
        # An attempt on the loop that forks can't come to its end before the fork.
        while any(attempts for loop, attempts in list(_under_way.items()) if loop is not here and loop.is_running()):
            if time.monotonic() > deadline:
                return
            time.sleep(_MOMENT)

    def after_fork(self, *, in_child: bool) -> None:
        self.is_shut = False


_turnstile = _Turnstile()


def _drop(attempt: Attempt) -> None:
    """A connection has come that nobody wants any more."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().terminate()


async def _attempts_here() -> set[Attempt]:
    loop = asyncio.get_running_loop()
    if loop not in _keepers:
        for other in [each for each in list(_keepers) if each.is_closed()]:
            inherited.leave_behind(other, (_keepers.pop(other, None), _under_way.pop(other, None)))
        _under_way[loop] = set()
        _keepers[loop] = _keep(loop)
        await anext(_keepers[loop])
    return _under_way[loop]


async def _keep(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
    """An event loop that comes to its end finishes its generators first."""
    try:
        yield
    finally:
        attempts = _under_way.pop(loop, set())
        _keepers.pop(loop, None)
        while attempts:
            _, late = await asyncio.wait(attempts, timeout=_PATIENCE)
            for attempt in late:
                attempt.cancel()
