"""A private PostgreSQL server."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

from tests.servers.account import Account
from tests.servers.binaries import find_binaries, reachable
from tests.servers.certificate import make_certificate
from tests.servers.databases import Databases
from tests.servers.folder import fast_parent, lasting_parent
from tests.servers.port import free_port
from tests.servers.ward import Ward

Mode = Literal["smart", "fast", "immediate"]
Auth = Literal["trust", "scram-sha-256"]

_SIGNALS: dict[Mode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_PATIENCE = 60.0
_STATUS_LINE = 7  # in postmaster.pid


class PostgresServer(Databases):
    """A PostgreSQL server of our own, on 127.0.0.1 and on a socket in its folder.

    `stop` keeps the data, so that `start` brings it back at the same address; `close`, the end of a `with` block, and
    the end of this process remove everything. With `is_synced` commits are as durable as in production; without, the
    data survive any end of the server, but not of the machine. Its folder is made in `parent`.
    """

    def __init__(
        self,
        *,
        is_synced: bool = False,
        settings: Mapping[str, str | int] | None = None,
        parent: Path | None = None,
        auth: Auth = "trust",
        password: str | None = None,
        with_tls: bool = False,
        binaries: Path | None = None,
        watched: int | None = None,
    ) -> None:
        self.auth = auth
        self.password = password
        account = Account.for_servers()
        self._binaries = reachable(binaries or find_binaries(with_tls=with_tls), account)
        self._ward = Ward(parent or (lasting_parent() if is_synced else fast_parent()), account, watched=watched)
        self.port = free_port()
        self._has_chosen_port = False
        login = "postgres" if password is None else f"postgres:{quote(password, safe='')}"
        self._login = login
        super().__init__(self._tcp_address())
        try:
            self._initialize()
            self.certificate = self._configure(is_synced, with_tls, settings or {})
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> Path:
        return self._ward.folder

    @property
    def data(self) -> Path:
        return self._ward.folder / "data"

    @property
    def pid(self) -> int | None:
        """The process that all of the server's others descend from; None while it is stopped."""
        return self._ward.pid if self._ward.is_running else None

    @property
    def is_running(self) -> bool:
        return self._ward.is_running

    @property
    def log(self) -> str:
        return self._ward.log

    def socket_url(self, database: str = "postgres") -> str:
        """Through the socket in the server's folder, where nobody is asked for a password."""
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self.folder), safe='')}&port={self.port}"

    def start(self) -> Self:
        """Return when the server takes connections."""
        deadline = time.monotonic() + _PATIENCE
        while not self._attempt(deadline):
            # What another process takes or holds, it may give back: the port, or the memory of a killed server.
            said = self._ward.log[-2000:]
            may_pass = "Address already in use" in said or "shared memory block" in said
            if not may_pass or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start:\n{said}")
            if not self._has_chosen_port:
                self.port = free_port()
                self._address = self._tcp_address()
            time.sleep(0.1)
        self._has_chosen_port = True
        return self

    def stop(self, mode: Mode = "fast") -> None:
        """Return when the server is gone. Smart waits for clients, fast cuts them off, immediate is a crash."""
        self._ward.end(_SIGNALS[mode])

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self._ward.close()

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tcp_address(self) -> str:
        return f"postgresql://{self._login}@127.0.0.1:{self.port}"

    def _initialize(self) -> None:
        command: list[str | Path] = [self._binaries / "initdb", "-D", self.data, "-U", "postgres", "--no-sync"]
        command += ["-E", "UTF8", "--locale=C", "--auth-local=trust", f"--auth-host={self.auth}"]
        if self.password is not None:
            secret = self.folder / "password"
            secret.touch(0o600)
            secret.write_text(self.password)
            self._ward.account.own(secret)
            command.append(f"--pwfile={secret}")
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, **self._ward.account.options()
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")
        if self.password is not None:
            (self.folder / "password").unlink()

    def _configure(self, is_synced: bool, with_tls: bool, settings: Mapping[str, str | int]) -> Path | None:
        """Write the settings, and return the certificate, if any."""
        chosen: dict[str, str | int] = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": 200,
        }
        if not is_synced:
            chosen |= {"fsync": "off", "full_page_writes": "off"}
        certificate = None
        if with_tls:
            certificate, key = make_certificate(self.folder, self._ward.account)
            chosen |= {"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(key)}
        chosen |= settings
        with (self.data / "postgresql.conf").open("a") as file:
            for name, value in chosen.items():
                quoted = str(value).replace("'", "''")
                file.write(f"{name} = '{quoted}'\n")
        return certificate

    def _attempt(self, deadline: float) -> bool:
        """Start the server, and tell whether it became ready."""
        self._ward.start([self._binaries / "postgres", "-D", self.data, "-p", str(self.port)], self.data)
        while self._ward.is_running:
            if self._is_ready():
                return True
            if time.monotonic() > deadline:
                self.stop("immediate")
                return False
            time.sleep(0.005)
        return False

    def _is_ready(self) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # The file of a killed server stays, so it counts only with the id of this one.
        return len(lines) > _STATUS_LINE and lines[0] == str(self.pid) and lines[_STATUS_LINE].strip() == "ready"
