"""Real threads, locks and sockets, also where gevent has replaced them.

A monkey-patched "thread" is a greenlet of the thread that started it: one blocking call
into SQLite, or one event loop, would stop them all. What Holdfast runs beside the caller
must therefore be a thread of the operating system, and use what is made for such threads.
"""

from __future__ import annotations

import _queue
import _socket
import asyncio
import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import _thread

Channel = _queue.SimpleQueue
"""A queue between threads. The C type knows nothing of patched locks."""

Socket = _socket.socket
"""The C type below `socket.socket`, which gevent leaves as it is."""


def _original(module: str, name: str) -> Any:
    """What a module's name stood for before gevent replaced it, whether that was before or after our import."""
    monkey = sys.modules.get("gevent.monkey")
    return getattr(importlib.import_module(module), name) if monkey is None else monkey.get_original(module, name)


def start_thread(target: Callable[[], None]) -> None:
    """Run a function in a thread of its own. It does not keep the process alive."""
    _original("_thread", "start_new_thread")(target, ())


def sleep(seconds: float) -> None:
    """Let this thread, with all its greenlets, do nothing for a while."""
    _original("time", "sleep")(seconds)


def make_lock() -> _thread.LockType:
    """A lock between threads. Under gevent, it must not be held across anything that lets other greenlets run."""
    lock: _thread.LockType = _original("_thread", "allocate_lock")()
    return lock


def make_reentrant_lock() -> _thread.RLock:
    """The same for code that a signal handler may interrupt and call again."""
    lock: _thread.RLock = _original("_thread", "RLock")()
    return lock


# ── event loops ──────────────────────────────────────────────────────────────────────────────────────────────────────


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop for a thread of ours. It waits in the kernel, where gevent's selector would switch greenlets."""
    if "gevent.monkey" not in sys.modules:
        return asyncio.new_event_loop()
    return _KernelEventLoop(_original("selectors", "DefaultSelector")())


class _KernelEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, whose sockets are some that gevent has nothing to do with, its alarm clock's included."""

    def _make_self_pipe(self) -> None:
        self._ssock, self._csock = _socket.socketpair()
        self._ssock.setblocking(False)
        self._csock.setblocking(False)
        self._internal_fds: int = getattr(self, "_internal_fds", 0) + 1
        self._add_reader(self._ssock.fileno(), self._read_from_self)  # type: ignore[attr-defined]

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **options: Any
    ) -> Any:
        if sock is None:
            sock = await self._connect(await self.getaddrinfo(host, port, type=_socket.SOCK_STREAM))
            if options.get("ssl") and not options.get("server_hostname"):
                options["server_hostname"] = host
        return await super().create_connection(protocol_factory, sock=sock, **options)

    async def create_unix_connection(
        self, protocol_factory: Any, path: Any = None, *, sock: Any = None, **options: Any
    ) -> Any:
        if sock is None:
            sock = await self._connect([(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, "", path)])
        return await super().create_unix_connection(protocol_factory, sock=sock, **options)

    async def _connect(self, places: list[Any]) -> Any:
        """A socket that is connected to the first of these places that answers."""
        failure: OSError | None = None
        for family, kind, protocol, _, address in places:
            sock = _original("socket", "socket")(family, kind, protocol)
            try:
                sock.setblocking(False)
                await self.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = failure or error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failure or OSError("the name of the host stands for no address")

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """In a thread of its own, since that of an executor would be a greenlet that never gets its turn."""
        # That thread must import nothing, neither the codec for names nor what is asked: gevent has put locks of its
        # own into imports, and for those it might wait for longer than anybody waits for a connection.
        name = host.encode("idna") if isinstance(host, str) else host
        find = _original("socket", "getaddrinfo")
        future: asyncio.Future[Any] = self.create_future()

        def answer(give: Callable[[Any], None], what: Any) -> None:
            if not future.done():
                give(what)

        def look() -> None:
            try:
                give, what = future.set_result, find(name, port, **options)
            except Exception as error:
                give, what = future.set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits any more
                self.call_soon_threadsafe(answer, give, what)

        start_thread(look)
        return await future


# ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Gate(Protocol):
    """Shut at first. One caller waits at it; any thread opens it, at most once."""

    def open(self) -> None: ...
    def wait(self) -> None: ...
    def close(self) -> None:
        """Nobody will wait at it any more, and opening it does nothing."""
        ...


def make_gate() -> Gate:
    """A gate for this caller: a thread waits by itself, a greenlet lets its siblings run."""
    local = sys.modules.get("gevent._hub_local")
    hub = None if local is None else local.get_hub_if_exists()
    if hub is None or hub is sys.modules["greenlet"].getcurrent():
        return _ThreadGate()  # nobody else runs in this thread, or it can't be left
    return _GreenletGate(hub)


class _ThreadGate:
    def __init__(self) -> None:
        lock = make_lock()
        lock.acquire()
        self.open = lock.release
        self._acquire = lock.acquire

    def wait(self) -> None:
        # A Ctrl-C that comes just before the wait, or any on Windows, is noticed only between two waits.
        while not self._acquire(timeout=0.5):
            pass

    def close(self) -> None:
        return


class _GreenletGate:
    def __init__(self, hub: Any) -> None:
        from gevent.event import Event  # type: ignore[import-untyped]

        self._event = Event()
        self._lock = make_lock()
        # It listens from the start: what is sent to a watcher before that is lost.
        self._watcher: Any = hub.loop.async_()
        self._watcher.start(self._event.set)

    def open(self) -> None:
        with self._lock:
            if self._watcher is not None:
                self._watcher.send()

    def wait(self) -> None:
        self._event.wait()

    def close(self) -> None:
        watcher = self._watcher
        with self._lock:
            self._watcher = None
        watcher.stop()
        watcher.close()
