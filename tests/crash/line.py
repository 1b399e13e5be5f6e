"""A line between a test and the process that acts for it: one JSON message at a time, in both directions."""

from __future__ import annotations

import json
import socket
from typing import Any

PATIENCE = 20.0
"""No wait in these tests lasts longer. It is a limit for hangs, not a measure of speed."""


class Gone(Exception):
    """The other end is dead, or has hung up."""


class Line:
    """One end of the line."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def say(self, word: str, **facts: Any) -> None:
        try:
            self._end.sendall(json.dumps({"word": word, **facts}).encode())
        except (BrokenPipeError, ConnectionResetError):
            raise Gone(f"Nobody is there to hear {word!r}.") from None

    def hear(self, word: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait for this word and return the facts that came with it. Any other word is a failure."""
        self._end.settimeout(seconds)
        try:
            packet = self._end.recv(1 << 20)
        except ConnectionResetError:
            packet = b""
        except TimeoutError:
            raise AssertionError(f"Nothing was heard for {seconds:.0f} s; {word!r} was expected.") from None
        if not packet:
            raise Gone(f"The other end hung up before it said {word!r}.")
        facts: dict[str, Any] = json.loads(packet)
        heard = facts.pop("word")
        assert heard == word, f"{word!r} was expected, {heard!r} came: {facts.get('trace', facts)}"
        return facts

    def close(self) -> None:
        self._end.close()


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
