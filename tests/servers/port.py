"""Ports for servers."""

from __future__ import annotations

import random
import socket

# Below the range from which systems number outgoing connections: one of those could take the port of a server that is
# down for a moment.
_RANGE = range(20_000, 32_000)


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    while True:
        port = random.choice(_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
