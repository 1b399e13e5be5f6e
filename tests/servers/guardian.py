"""The process that stands between the tests and a server, so that none survives them.

Its own file and the standard library are all it needs. It starts the server, tells its process id, and waits for the
first of two ends: the server's, after which a new guardian may start it again; or that of the process watched, also by
SIGKILL, after which the server is ended and its folder removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

_PATIENCE = 10.0


def main() -> int:
    order: dict[str, Any] = json.loads(sys.argv[1])
    folder: str = order["folder"]
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)  # until the end of this process: see folder.py
    with open(os.path.join(folder, "log"), "ab") as log:
        server = subprocess.Popen(
            order["command"],
            cwd=order["directory"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **order["account"],
        )
    print(server.pid, flush=True)  # noqa: T201  # the answer that the starting process waits for
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _wait_for_either(order["watched"], server)
    if server.poll() is not None and _is_alive(order["watched"]):
        return 0
    _end(server)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _wait_for_either(watched: int, server: subprocess.Popen[bytes]) -> None:
    if sys.platform == "linux":
        try:
            handles = [os.pidfd_open(watched), os.pidfd_open(server.pid)]
        except ProcessLookupError:
            return
        select.select(handles, [], [])
    else:
        while server.poll() is None and _is_alive(watched):
            time.sleep(0.1)


def _is_alive(pid: int) -> bool:
    if sys.platform == "linux":
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        # A process that nobody has reaped yet is dead all the same.
        return not select.select([handle], [], [], 0)[0]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _end(server: subprocess.Popen[bytes]) -> None:
    """At once: nobody needs its data any more."""
    server.send_signal(signal.SIGQUIT)
    try:
        server.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
