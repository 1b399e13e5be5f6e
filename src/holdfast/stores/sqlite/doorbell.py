"""Wake-ups between the processes that share a SQLite file: datagrams to sockets in a folder beside it.

Whoever waits for something puts up a bell, a socket whose file name starts with the kinds of
hints it is for. Whoever commits a change rings those bells. A bell that nobody answers
any more is taken down by the next one who rings it. Hints only make things faster: where
bells can't be had (Windows, odd file systems), looking now and then must do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.errors import StoreError
from holdfast.native import Socket, make_lock, sleep, start_thread
from holdfast.store import Hint, HintKind
from holdfast.stores.sqlite.connection import Access, Connection

_LETTERS = {
    HintKind.WORK: "w",
    HintKind.FINISHED: "f",
    HintKind.CANCEL: "c",
    HintKind.CONTROL: "p",
    HintKind.ROOM: "r",
    HintKind.LATER: "l",
    HintKind.SCHEDULES: "s",
    HintKind.BREAKERS: "b",
}
_ALWAYS_RUNG = frozenset({HintKind.CANCEL, HintKind.CONTROL, HintKind.SCHEDULES, HintKind.BREAKERS})
"""What nobody does in a transaction of their own: the ring says all there is to say."""
_MOST_IDS = 200
_LARGEST = 16_384
_LONGEST_PATH = 100
_SETTLED_AFTER = 0.1
"""File systems stamp folders coarsely: one that changed this recently may change again without showing it."""

_hints = msgspec.json.Decoder(list[Hint])
_FAMILY = getattr(socket, "AF_UNIX", None)


class Doorbell:
    """Rings the other processes' bells, and has one of its own while somebody here waits."""

    def __init__(self, database: Path, deliver: Callable[[Iterable[Hint]], None]) -> None:
        """`deliver` takes what was rung; from another thread."""
        self._database = database
        self._folder = Path(f"{database}-bells")
        self._deliver = deliver
        self._name = secrets.token_hex(6)
        self._bell: Ear | None = None
        self._others: list[tuple[str, str]] = []
        self._wanted: frozenset[HintKind] = frozenset()
        self._listed_at = -1
        self._lock = make_lock()

    # ── ringing: in the writer's thread ──────────────────────────────────────────────────────────────────────────────

    def wanted(self) -> frozenset[HintKind]:
        """The kinds of hints that other processes wait for."""
        self._list()
        return self._wanted

    def ring(self, hints: Iterable[Hint]) -> None:
        others = self._list()
        if not others:
            return
        for hint in hints:
            letter = _LETTERS[hint.kind]
            message = b""
            for letters, name in others:
                if letter in letters:
                    message = message or msgspec.json.encode([_shortened(hint)])
                    self._send(message, f"{letters}-{name}")

    def _list(self) -> list[tuple[str, str]]:
        """The other bells: the folder is read anew when it has changed."""
        try:
            changed_at = os.stat(self._folder).st_mtime_ns
        except OSError:
            self._others, self._wanted = [], frozenset()
            return self._others
        if changed_at != self._listed_at:
            try:
                entries = os.listdir(self._folder)
            except OSError:
                entries = []
            names = (entry.split("-", 1) for entry in entries if "-" in entry)
            self._others = [(letters, name) for letters, name in names if name != self._name and letters]
            letters_up = {letter for letters, _ in self._others for letter in letters}
            self._wanted = frozenset(kind for kind, letter in _LETTERS.items() if letter in letters_up)
            is_settled = time.time_ns() - changed_at > _SETTLED_AFTER * 1e9
            self._listed_at = changed_at if is_settled else -1
        return self._others

    def _send(self, message: bytes, name: str) -> None:
        assert _FAMILY is not None
        try:
            with (
                _address(self._folder, name) as address,
                contextlib.closing(Socket(_FAMILY, socket.SOCK_DGRAM)) as bell,
            ):
                bell.setblocking(False)
                bell.sendto(message, address)
        except OSError as error:
            # A full bell has been rung enough; one whose owner died is taken down.
            if error.errno == errno.ECONNREFUSED:
                with contextlib.suppress(OSError):
                    os.unlink(self._folder / name)
            self._listed_at = -1

    # ── listening ────────────────────────────────────────────────────────────────────────────────────────────────────

    def listen_for(self, kinds: Callable[[], frozenset[HintKind]]) -> None:
        """Put up a bell for what is waited for now, or change what the bell is for. It stays up until `close`."""
        with self._lock:
            letters = "".join(_LETTERS[kind] for kind in HintKind if kind in kinds())
            if self._bell is not None:
                self._bell.rename(letters)
            elif letters:
                self._bell = Ear(self._database, self._folder, self._name, letters, self._deliver)

    def close(self) -> None:
        with self._lock:
            bell, self._bell = self._bell, None
        if bell is not None:
            bell.stop()


class Watcher:
    """Tells whether the file has changed, by SQLite's own count of other connections' commits."""

    def __init__(self, database: Path) -> None:
        self._access = Access(lambda: Connection(database, is_reader=True))
        self._version = 0

    def has_changed(self) -> bool:
        try:
            with self._access.reserved():
                ((version,),) = self._access.connection().execute("pragma data_version")
        except (sqlite3.Error, StoreError):
            return True  # nothing can be seen, so anything may have happened
        before, self._version = self._version, int(version)
        return before != self._version

    def close(self) -> None:
        with self._access.reserved():
            self._access.drop()


class Ear:
    """A bell, and the thread that waits for it to ring."""

    def __init__(
        self,
        database: Path,
        folder: Path,
        name: str,
        letters: str,
        deliver: Callable[[Iterable[Hint]], None],
        look_every: float = 0.5,
    ) -> None:
        self._folder = folder
        self._name = name
        self._letters = letters
        self._deliver = deliver
        self._watcher = Watcher(database)
        self._look_every = look_every
        self._is_stopped = False
        self._looked_at = 0.0
        self._socket = self._put_up()
        start_thread(self._listen)

    def _put_up(self) -> Socket | None:
        if _FAMILY is None:
            return None
        try:
            bell = Socket(_FAMILY, socket.SOCK_DGRAM)
        except OSError:
            return None  # no file handle is left; looking now and then must do
        try:
            self._folder.mkdir(exist_ok=True)
            with _address(self._folder, f"{self._letters}-{self._name}") as address:
                bell.bind(address)
            bell.settimeout(self._look_every)
        except OSError:
            bell.close()
            return None
        return bell

    def rename(self, letters: str) -> None:
        """The file's name changes; the socket behind it stays."""
        if letters != self._letters:
            old, new = (self._folder / f"{of}-{self._name}" for of in (self._letters, letters))
            self._letters = letters
            with contextlib.suppress(OSError):
                os.rename(old, new)

    def stop(self) -> None:
        self._is_stopped = True
        with contextlib.suppress(OSError):
            os.unlink(self._folder / f"{self._letters}-{self._name}")

    def _listen(self) -> None:
        while not self._is_stopped:
            hints = self._next() if self._letters else self._wait()
            if hints and not self._is_stopped:
                self._deliver(hints)
        self._watcher.close()
        if self._socket is not None:
            self._socket.close()

    def _next(self) -> Iterable[Hint]:
        rung = self._wait()
        now = time.monotonic()
        if rung and now - self._looked_at < self._look_every:
            return rung
        # A job that somebody enqueued in a transaction of their own rings no bell, but changes the file.
        self._looked_at = now
        if not self._watcher.has_changed():
            return rung
        named = {hint.kind: hint for hint in rung if hint.kind in _ALWAYS_RUNG}
        return [named.get(kind, Hint(kind)) for kind in HintKind]

    def _wait(self) -> Iterable[Hint]:
        """What was rung; nothing if nobody rang for a while."""
        if self._socket is None:
            sleep(self._look_every)
            return ()
        try:
            return _hints.decode(self._socket.recv(_LARGEST))
        except (TimeoutError, OSError, msgspec.DecodeError):
            return ()


def _shortened(hint: Hint) -> Hint:
    return Hint(hint.kind, hint.queues) if len(hint.ids) > _MOST_IDS else hint


@contextlib.contextmanager
def _address(folder: Path, name: str) -> Iterator[str]:
    """The path of a bell. Sockets take short paths only, so a long one is walked up to through an open folder."""
    path = str(folder / name)
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield path
        return
    directory = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)
