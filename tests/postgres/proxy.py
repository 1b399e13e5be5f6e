"""A proxy between a store and its server that does harm at chosen moments.

It reads enough of PostgreSQL's protocol to know what it carries: the client's requests, each with the text of its
statement, and where the server's answer to each of them ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

_TLS_REQUEST: Final = 80877103
_CANCEL_REQUEST: Final = 80877102
_ENDS_OF_REQUESTS: Final = {b"Q": b"Z", b"S": b"Z", b"H": b"TnE"}
"""The client's messages that ask for an answer, and the server's messages that end it."""


class Harm(Enum):
    """What is done to a request."""

    CUT_BEFORE = "the server never hears of it"
    CUT_BEHIND = "the server hears of it, and goes on with it, but nobody listens any more"
    CUT_AFTER = "the server has done it, and its answer is lost"
    SILENCE = "the server does it, and its answer never comes, though nobody hangs up"
    HOLD = "it stays here until it is let go"


CUTS: Final = (Harm.CUT_BEFORE, Harm.CUT_BEHIND, Harm.CUT_AFTER)


@dataclass
class Plan:
    """Harm that is to be done: to all requests, or to those that execute a statement that holds `text`.

    The first `skip` of them are spared, and it is done `times` times.
    """

    harm: Harm
    text: str = ""
    skip: int = 0
    times: int = 1
    unless: str = "as notice (channel, payload)"
    """Hints are sent behind everybody's back, at any moment, and may be lost."""
    done: int = 0
    happened: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets go of what is held."""

    def concerns(self, text: str, is_executed: bool) -> bool:
        if self.done >= self.times or self.text not in text or self.unless in text:
            return False
        if self.text and not is_executed:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.done += 1
        return True


class Proxy:
    """Stands at `url` for the server at another one."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._wires: set[_Wire] = set()
        self.plans: list[Plan] = []
        self.is_closed_to_new = False
        self.delay = 0.0
        """Seconds that every request takes longer."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        while self._wires:
            await asyncio.wait([wire.task for wire in self._wires])
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        login = self._target.netloc.rpartition("@")[0]
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit(self._target._replace(netloc=f"{login}@127.0.0.1:{port}"))

    @property
    def connections(self) -> int:
        return len(self._wires)

    def plan(self, harm: Harm, text: str = "", *, skip: int = 0, times: int = 1) -> Plan:
        plan = Plan(harm, text, skip, times)
        self.plans.append(plan)
        return plan

    def cut_all(self) -> None:
        for wire in list(self._wires):
            wire.cut()

    def go_away(self) -> None:
        """Cut everything, and let nobody in."""
        self.is_closed_to_new = True
        self.cut_all()

    def come_back(self) -> None:
        self.is_closed_to_new = False
        self.plans.clear()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A task that is cancelled before it has begun could not hang up: so it is not the task that does it."""
        assert self._server is not None
        if self.is_closed_to_new or not self._server.is_serving():
            writer.transport.abort()
            return
        wire = _Wire(self, reader, writer)
        self._wires.add(wire)

        def hang_up(_: object) -> None:
            wire.cut()
            self._wires.discard(wire)

        wire.task = asyncio.create_task(self._serve(wire))
        wire.task.add_done_callback(hang_up)

    async def _serve(self, wire: _Wire) -> None:
        assert self._target.port is not None
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await wire.carry(str(self._target.hostname), self._target.port)


class _Wire:
    """One connection."""

    task: asyncio.Task[None]

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client, self._to_client = reader, writer
        self._to_server: asyncio.StreamWriter | None = None
        self._statements: dict[bytes, str] = {}
        self._asked: deque[tuple[bytes, Plan | None]] = deque()
        """What the server has not answered yet: the end of each answer, and what is to be done to it."""
        self._is_silent = False

    def cut(self) -> None:
        for writer in (self._to_client, self._to_server):
            if writer is not None:
                writer.transport.abort()

    async def carry(self, host: str, port: int) -> None:
        server, self._to_server = await asyncio.open_connection(host, port)
        if not await self._introduce(server):
            return
        back = asyncio.create_task(self._carry_answers(server))
        try:
            await self._carry_requests()
        finally:
            # Who has hung up may still be told something, and the server may still be busy.
            back.cancel()
            await asyncio.wait([back])
            if not back.cancelled():
                back.exception()

    async def _introduce(self, server: asyncio.StreamReader) -> bool:
        """The first packets have no type. False if nothing follows them."""
        assert self._to_server is not None
        while True:
            head = await self._client.readexactly(8)
            length, code = struct.unpack("!ii", head)
            self._to_server.write(head + await self._client.readexactly(length - 8))
            if code == _CANCEL_REQUEST:
                self._to_client.write(await server.read())
                return False
            if code != _TLS_REQUEST:
                return True
            self._to_client.write(await server.readexactly(1))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _carry_requests(self) -> None:
        request, text = b"", ""
        while True:
            kind, message = await _read(self._client)
            request += message
            text += self._text_of(kind, message[5:])
            end = _ENDS_OF_REQUESTS.get(kind)
            if end is None and kind in b"PBDEC":
                continue
            await self._pass_on(request, text, end)
            request, text = b"", ""

    def _text_of(self, kind: bytes, body: bytes) -> str:
        if kind == b"Q":
            return body.rstrip(b"\0").decode()
        if kind == b"P":
            name, sql, _ = body.split(b"\0", 2)
            self._statements[name] = sql.decode()
            return self._statements[name]
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return self._statements.get(name, "")
        return ""

    async def _pass_on(self, request: bytes, text: str, end: bytes | None) -> None:
        assert self._to_server is not None
        plan = None
        if end is not None:
            if self._proxy.delay:
                await asyncio.sleep(self._proxy.delay)
            is_executed = end == _ENDS_OF_REQUESTS[b"S"]
            plan = next((plan for plan in self._proxy.plans if plan.concerns(text, is_executed)), None)
        if plan is not None and plan.harm is Harm.CUT_BEFORE:
            plan.happened.set()
            raise ConnectionError
        if plan is not None and plan.harm is Harm.HOLD:
            plan.happened.set()
            await plan.release.wait()
        if end is not None:
            self._asked.append((end, plan))
        self._to_server.write(request)
        await self._to_server.drain()
        if plan is not None and plan.harm is Harm.CUT_BEHIND:
            plan.happened.set()
            self._to_server.close()  # after all of it was written
            await self._to_server.wait_closed()
            raise ConnectionError

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _carry_answers(self, server: asyncio.StreamReader) -> None:
        try:
            while True:
                kind, message = await _read(server)
                end, plan = self._asked[0] if self._asked else (b"", None)
                is_lost = plan is not None and plan.harm in (Harm.CUT_AFTER, Harm.SILENCE)
                if not is_lost and not self._is_silent:
                    self._to_client.write(message)
                if kind in end and self._asked:
                    self._asked.popleft()
                    if is_lost and plan is not None:
                        plan.happened.set()
                        if plan.harm is Harm.CUT_AFTER:
                            return
                        self._is_silent = True
        finally:
            self.cut()


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!i", head[1:])
    return head[:1], head + await reader.readexactly(length - 4)
