"""Real threads, locks and sockets, also where gevent has replaced them.

A monkey-patched "thread" is a greenlet of the thread that started it: one blocking call
into SQLite, or one event loop, would stop them all. What Holdfast runs beside the caller
must therefore be a thread of the operating system.
"""

from __future__ import annotations

import _queue
import _socket
import _thread
import asyncio
import selectors
import sys
from collections.abc import Callable
from typing import Any

Channel = _queue.SimpleQueue
"""A queue between threads. The C type knows nothing of patched locks."""

Socket = _socket.socket
"""The C type below `socket.socket`, which gevent leaves as it is."""


def is_patched() -> bool:
    """Whether gevent has replaced threads in this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def _original(name: str) -> Any:
    monkey = sys.modules.get("gevent.monkey")
    return getattr(_thread, name) if monkey is None else monkey.get_original("_thread", name)


def start_thread(target: Callable[[], None]) -> None:
    """Run a function in a thread of its own. It does not keep the process alive."""
    _original("start_new_thread")(target, ())


def make_lock() -> _thread.LockType:
    lock: _thread.LockType = _original("allocate_lock")()
    return lock


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop that waits in the kernel. gevent's selector would make it wait in a greenlet."""
    if not is_patched():
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(_KernelSelector())


def greenlet_gate() -> tuple[Callable[[], None], Callable[[], object]]:
    """A gate that a native thread opens and a greenlet waits at, while its siblings run."""
    from gevent import get_hub  # type: ignore[import-untyped]

    hub = get_hub()
    watcher = hub.loop.async_()
    is_open = False

    def open_gate() -> None:
        nonlocal is_open
        is_open = True
        watcher.send()

    def wait() -> None:
        if not is_open:
            hub.wait(watcher)
        watcher.close()

    return open_gate, wait


class _KernelSelector(selectors.SelectSelector):
    """`select.select` as it was before gevent replaced it. The façade's loop watches a handful of files at most."""

    def _select(self, r: Any, w: Any, _: Any, timeout: float | None = None) -> Any:
        monkey = sys.modules["gevent.monkey"]
        return monkey.get_original("select", "select")(r, w, [], timeout)
