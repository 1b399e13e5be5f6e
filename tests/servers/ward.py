"""A server's process and folder."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers.account import Account
from tests.servers.folder import make_folder

_PATIENCE = 30.0


class Ward:
    """A server in a private folder, under a guardian. Both end with the process watched, however that ends."""

    def __init__(self, parent: Path, account: Account, *, watched: int | None = None) -> None:
        self.account = account
        self.folder, self._lock = make_folder(parent)
        account.own(self.folder)
        self._maker = os.getpid()
        self._watched = watched or os.getpid()
        self._guardian: subprocess.Popen[str] | None = None
        self.pid: int | None = None
        if self._watched == os.getpid():
            # The guardian would see to it as well; but there is none while the server is stopped.
            atexit.register(self.close)

    @property
    def is_running(self) -> bool:
        return self._guardian is not None and self._guardian.poll() is None

    @property
    def log(self) -> str:
        """What the server said."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, command: Sequence[str | Path], directory: Path) -> None:
        """Start the server. It may not be ready yet, or end at once: see `is_running` and `log`."""
        assert not self.is_running, "The server runs already."
        self._forget_guardian()
        order = {
            "command": [str(part) for part in command],
            "folder": str(self.folder),
            "directory": str(directory),
            "account": self.account.options(),
            "watched": self._watched,
        }
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", Path(__file__).with_name("guardian.py"), json.dumps(order)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            start_new_session=True,  # Ctrl-C is for the tests; they still need the server to clean up
        )
        assert self._guardian.stdout is not None
        with self._guardian.stdout as answer:
            self.pid = int(answer.readline())

    def end(self, how: signal.Signals) -> None:
        """Signal the server, and return when it is gone. The folder stays."""
        if self._guardian is None or self.pid is None:
            return
        try:
            if self.is_running:
                os.kill(self.pid, how)
            self._guardian.wait(_PATIENCE)
        except ProcessLookupError:
            self._guardian.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL if how == signal.SIGQUIT else signal.SIGQUIT)
            self._guardian.wait(_PATIENCE)
            raise TimeoutError(f"The server did not end after {how.name}; it had to be forced.") from None
        finally:
            self.pid = None

    def close(self) -> None:
        """End the server and remove its folder. May be called twice."""
        if os.getpid() != self._maker or self._lock < 0:
            return  # in the child of a fork the server is not ours
        atexit.unregister(self.close)
        try:
            self.end(signal.SIGQUIT)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def _forget_guardian(self) -> None:
        if self._guardian is not None:
            self._guardian.wait(_PATIENCE)
            self._guardian = None
