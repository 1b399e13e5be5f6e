"""Connections that nobody here may use any more: a parent's in its forked child, and those of a closed event loop.

A child that keeps its parent's sockets keeps the parent's sessions alive when that dies, and the locks in them. One
that closes them in good order says goodbye in the parent's name. So it does neither: where a socket was there is
nothing any more, and not a byte has gone through it.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from contextlib import suppress
from typing import Any

import asyncpg

_open: weakref.WeakKeyDictionary[asyncpg.Connection[Any], asyncio.AbstractEventLoop] = weakref.WeakKeyDictionary()
_kept: list[object] = []
"""Collecting these would run the ends of what is not ours, or is over."""


def remember(connection: asyncpg.Connection[Any]) -> None:
    """A connection was made on this event loop."""
    _open[connection] = asyncio.get_running_loop()


def leave_to_parent(what: object) -> None:
    """In a forked child: let go of all connections that were made before the fork. `what` holds on to some of them."""
    _kept.append(what)
    for connection in list(_open):
        _cut(connection)


def leave_behind(loop: asyncio.AbstractEventLoop, what: object) -> None:
    """Let go of the connections of a loop that was closed before it had closed them."""
    _kept.append(what)
    for connection in [each for each, its_loop in list(_open.items()) if its_loop is loop]:
        _cut(connection)


def _cut(connection: asyncpg.Connection[Any]) -> None:
    _kept.append(connection)
    _open.pop(connection, None)
    with suppress(Exception):  # it may be closed
        number = connection._transport.get_extra_info("socket").fileno()  # type: ignore[attr-defined]
        nothing = os.open(os.devnull, os.O_RDWR)
        # In its place: whoever still has the number can't hit another file that got it meanwhile.
        os.dup2(nothing, number, inheritable=False)
        os.close(nothing)
