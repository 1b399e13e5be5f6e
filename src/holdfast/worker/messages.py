"""What a supervisor and its children say to each other: one line of JSON each, over a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import Final
from uuid import UUID

import msgspec

from holdfast.schedule import Plan
from holdfast.store import Retention
from holdfast.worker.findings import Fuse

_LONGEST: Final = 4 * 1024 * 1024

# ── from the supervisor ──────────────────────────────────────────────────────────────────────────────────────────────


class Go(msgspec.Struct, tag="go", frozen=True):
    """Start to work, as this worker, which is registered.

    `code_since` is when the supervisor started the first child with the same tasks, by the monotonic clock.
    """

    worker: UUID
    code_since: float


class Cancelled(msgspec.Struct, tag="cancelled", frozen=True):
    """The cancellation of these jobs was asked for."""

    ids: list[UUID]


class Taken(msgspec.Struct, tag="taken", frozen=True):
    """These jobs, under these tokens, are not yours any more."""

    claims: dict[UUID, UUID]


class Quiet(msgspec.Struct, tag="quiet", frozen=True):
    """Claim nothing more. What runs goes on."""


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """Claim nothing more, let what runs finish for so many seconds, give back the rest, and end."""

    grace: float


# ── from a child ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The app is imported. What the supervisor must know of it, since it runs no code of the user's."""

    url: str
    place: str
    """Where the jobs are, for people."""
    tasks: list[str]
    retention: Retention
    schedules: dict[str, Plan]
    """What the code says of them."""
    code: str
    """Tells whether two children have the same tasks."""
    fuses: list[Fuse]
    """Its breakers, in the order of their numbers in the flight recorder."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """It works."""


class Lost(msgspec.Struct, tag="lost", frozen=True):
    """The store has taken it for dead."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """It can't start, and here is why."""

    reason: str


ToChild = Go | Cancelled | Taken | Quiet | Stop
ToSupervisor = Hello | Ready | Lost | Failed

_encoder = msgspec.json.Encoder()
_to_child: Final = msgspec.json.Decoder(ToChild)
_to_supervisor: Final = msgspec.json.Decoder(ToSupervisor)


def heard_by_child(text: bytes) -> ToChild:
    message: ToChild = _to_child.decode(text)
    return message


def heard_by_supervisor(text: bytes) -> ToSupervisor:
    message: ToSupervisor = _to_supervisor.decode(text)
    return message


class Line:
    """One end of the line. Nothing that is said here is large, or waits for an answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Line:
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end, limit=_LONGEST))

    def say(self, message: msgspec.Struct) -> None:
        """Send, if anybody is still there."""
        if not self._writer.is_closing():
            self._writer.write(_encoder.encode(message) + b"\n")

    async def hear(self) -> bytes | None:
        """The next message; None if the other end is gone."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        return line or None

    async def flush(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            pass  # nobody is there any more

    def close(self) -> None:
        self._writer.close()
