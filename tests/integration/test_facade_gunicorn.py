"""The synchronous façade behind gunicorn: preloaded in the master, used in its forked workers."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.facade import PATIENCE, Database, finisher

WORKERS = 3
PATHS = [f"/result/{n}" for n in range(60)] + [f"/id/{n}" for n in range(60, 120)]


@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
def test_preloaded_workers_serve_requests(database: Database, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener, finisher(database):
        log = database.folder / "log"
        with log.open("wb") as output:
            server = _serve(kind, database, listener, output.fileno())
        try:
            with ThreadPoolExecutor(30) as threads:
                answers = list(threads.map(lambda path: _ask(listener, path), PATHS))
                _wait_for_all_workers(listener, threads)
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(PATIENCE)
    told = log.read_text()
    assert status == 0, told
    assert "Traceback" not in told
    assert "[ERROR]" not in told

    results = [answer for _, answer in answers]
    assert server.pid not in {pid for pid, _ in answers}
    assert results[:60] == [str(n) for n in range(60)]
    assert len(set(results[60:])) == 60
    assert database.stored() == [-server.pid, *range(120)]


def _serve(kind: str, database: Database, listener: socket.socket, output: int) -> subprocess.Popen[bytes]:
    options = [
        "--preload",
        f"--workers={WORKERS}",
        "--threads=4",
        f"--worker-class={kind}",
        f"--bind=fd://{listener.fileno()}",
    ]
    if kind == "gevent":
        options.remove("--threads=4")
    return subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *options, "--no-control-socket", "tests.integration.facade_wsgi"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "HOLDFAST_URL": database.url},
        pass_fds=[listener.fileno()],
        stdout=output,
        stderr=output,
    )


def _ask(listener: socket.socket, path: str) -> tuple[int, str]:
    """The pid of the worker that answers, and what it says."""
    host, port = listener.getsockname()
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=PATIENCE)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
    assert response.status == 200, body
    pid, answer = body.split()
    return int(pid), answer


def _wait_for_all_workers(listener: socket.socket, threads: ThreadPoolExecutor) -> None:
    """gunicorn's gevent worker does not hear a SIGTERM that comes before its first request."""
    deadline = time.monotonic() + PATIENCE
    seen = set[int]()
    while len(seen) < WORKERS:
        assert time.monotonic() < deadline
        seen |= {pid for pid, _ in threads.map(lambda n: _ask(listener, f"/ready/{n}"), range(30))}
