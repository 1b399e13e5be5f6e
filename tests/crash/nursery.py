"""Where the processes come from that the tests kill.

A small process without threads imports everything once and forks the others: they start in
milliseconds, so that hundreds of them can be killed, and share nothing with pytest.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.crash.line import PATIENCE, Gone, Line, pair

_PROJECT = Path(__file__).parents[2]


class Actor(Line):
    """A process that acts for a test. Leaving the `with` block kills it."""

    def __init__(self, end: socket.socket, pid: int, handle: int) -> None:
        super().__init__(end)
        self.pid = pid
        self._handle = handle

    def kill(self) -> None:
        """SIGKILL it, and return when it is dead."""
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended by itself
        self.wait()

    def wait(self) -> None:
        """Return when it has ended."""
        ended, _, _ = select.select([self._handle], [], [], PATIENCE)
        assert ended, f"Process {self.pid} does not end."

    @property
    def is_alive(self) -> bool:
        return not select.select([self._handle], [], [], 0)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.close()
        os.close(self._handle)


class Nursery:
    """Starts actors."""

    def __init__(self) -> None:
        self._control, theirs = pair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.nursery", str(theirs.fileno())],
                cwd=_PROJECT,
                pass_fds=[theirs.fileno()],
            )

    def start(self, verb: str, **options: Any) -> Actor:
        """Start a process that does what the function of this name in actors.py says."""
        ours, theirs = pair()
        with theirs:
            request = json.dumps({"verb": verb, "options": options}, default=str).encode()
            socket.send_fds(self._control, [request], [theirs.fileno()])
        answer, handles, _, _ = socket.recv_fds(self._control, 100, 1)
        if not answer:
            raise Gone("The nursery has died.")
        return Actor(ours, int(answer), handles[0])

    def close(self) -> None:
        self._control.close()
        self._process.wait(PATIENCE)


def main() -> None:
    from tests.crash.actors import perform

    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, handles, _, _ = socket.recv_fds(control, 1 << 20, 1)
        if not request:
            return
        _reap()
        pid = os.fork()
        if pid == 0:
            control.close()
            perform(Line(socket.socket(fileno=handles[0])), **json.loads(request))
        os.close(handles[0])
        handle = os.pidfd_open(pid)
        socket.send_fds(control, [str(pid).encode()], [handle])
        os.close(handle)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
