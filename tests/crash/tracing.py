"""Looking at a process's system calls with strace, and making them fail."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.line import PATIENCE
from tests.crash.rounds import cannot


@functools.cache
def _why_not() -> str | None:
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed (apt-get install strace)"
    tried = subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace does not work here: {tried.stderr.strip()}"


def require_strace() -> None:
    if reason := _why_not():
        cannot(reason)


@contextmanager
def traced(pid: int, log: Path, *options: str) -> Iterator[None]:
    """Trace a process and its threads from here on until it ends, which must be inside of the block."""
    command = ["strace", "-f", "-p", str(pid), "-o", str(log), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        first = tracer.stderr.readline()
        assert "attached" in first, first + tracer.stderr.read()
        try:
            yield
        finally:
            tracer.wait(PATIENCE)


def was_injected(log: Path) -> bool:
    return "(INJECTED)" in log.read_text(errors="replace")
