"""A private PgBouncer."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote, urlencode, urlsplit

from tests.servers.account import Account
from tests.servers.databases import Databases
from tests.servers.folder import fast_parent
from tests.servers.packages import NoServer, install
from tests.servers.port import free_port
from tests.servers.ward import Ward

_PATIENCE = 20.0


def find_pgbouncer() -> Path:
    """The program, installed if need be. Raises NoServer."""
    found = _look()
    if found is None:
        install("pgbouncer")
        found = _look()
    if found is None:
        raise NoServer("The package pgbouncer is installed, but its program is not in /usr/sbin.")
    return found


class PgBouncer:
    """PgBouncer in front of a server, in transaction mode unless the settings say otherwise.

    It asks no one for a password, and passes all on as the user that `server` is reached by.
    """

    def __init__(self, server: Databases, *, settings: Mapping[str, str | int] | None = None) -> None:
        program = find_pgbouncer()
        self._ward = Ward(fast_parent(), Account.for_servers())
        self.port = free_port()
        self._command = [program, self._configure(server, settings or {})]

    @property
    def log(self) -> str:
        return self._ward.log

    def url(self, database: str = "postgres", *, user: str = "postgres", **params: str) -> str:
        query = f"?{urlencode(params)}" if params else ""
        return f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{quote(database)}{query}"

    def through(self, url: str) -> str:
        """The way through here to a database that this URL reaches directly."""
        return self.url(unquote(urlsplit(url).path.lstrip("/")))

    def start(self) -> Self:
        """Return when it takes connections."""
        self._ward.start(self._command, self._ward.folder)
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and self._ward.is_running:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return self
        raise RuntimeError(f"PgBouncer does not start:\n{self.log[-2000:]}")

    def stop(self) -> None:
        """Cut all clients off."""
        self._ward.end(signal.SIGQUIT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it and remove its folder."""
        self._ward.close()

    def __enter__(self) -> Self:
        return self if self._ward.is_running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _configure(self, server: Databases, settings: Mapping[str, str | int]) -> Path:
        parts = urlsplit(server.url())
        target = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
        address = " ".join(f"{name}={_quoted(value)}" for name, value in target.items() if value is not None)
        chosen: dict[str, str | int] = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "default_pool_size": 3,
            "max_client_conn": 100,
        }
        chosen |= settings
        path = self._ward.folder / "pgbouncer.ini"
        lines = ["[databases]", f"* = {address}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in chosen.items()]
        path.write_text("\n".join(lines) + "\n")
        self._ward.account.own(path)
        return path


def _quoted(part: str | int) -> str:
    """A part of a URL, as PgBouncer's file wants it."""
    return "'" + unquote(str(part)).replace("'", "''") + "'"


def _look() -> Path | None:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    return Path(found) if found else None
