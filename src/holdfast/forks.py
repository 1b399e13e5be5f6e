"""What must be let go of before a fork, and what a forked child must forget.

Only the forking thread lives on in the child, which gets a copy of everything else as it was at
that moment: locks held by threads that are gone, loops that nobody runs, files shared
with the parent. Whoever owns such things says here what to do about them.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from holdfast import native


class Forkable(Protocol):
    """Something that must not be copied as it is. Both methods run in the thread that forks, and must not raise."""

    def before_fork(self) -> None:
        """Take the lock that keeps the other threads out until `after_fork`, and let go of what can't be shared."""
        ...

    def after_fork(self, *, in_child: bool) -> None:
        """Let the others in again. In the child there are none, and what they had must be left alone."""
        ...


_lock = native.make_reentrant_lock()
_known: weakref.WeakSet[Forkable] = weakref.WeakSet()
_held: list[Forkable] = []


def watch(what: Forkable) -> None:
    """Tell this of every fork, as long as it is referenced elsewhere.

    While a fork is under way this waits for it, so it must not be called with a lock held that `before_fork` takes.
    """
    with _lock:
        _known.add(what)


def _before() -> None:
    _lock.acquire()
    for each in list(_known):
        _held.append(each)
        each.before_fork()


def _after(*, in_child: bool) -> None:
    while _held:
        _held.pop().after_fork(in_child=in_child)
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(in_child=False),
        after_in_child=lambda: _after(in_child=True),
    )
