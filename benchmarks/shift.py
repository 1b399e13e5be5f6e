"""A shift: real worker processes, or limit programs, at work on one database, until all of its jobs are done."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.site import Sample, Site
from holdfast.job import JobState
from holdfast.store import Filter

_ROOT = Path(__file__).parents[1]
_PATIENCE = 120.0
_UNFINISHED = Filter(states=frozenset({JobState.PENDING, JobState.ACTIVE, JobState.RETRYING}))


@contextmanager
def running_worker(site: Site, processes: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`holdfast worker` as a user starts it, on this database."""
    command = [sys.executable, "-m", "holdfast", "worker", "benchmarks.jobs:hf", "--processes", str(processes)]
    with _running([*command, "--log-level", "ERROR", *options], site) as process:
        yield process


@contextmanager
def running_programs(site: Site, processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """As many limit programs."""
    with ExitStack() as programs:
        command = [sys.executable, "-m", "benchmarks.program", site.url]
        yield [programs.enter_context(_running(command, site)) for _ in range(processes)]


@contextmanager
def _running(command: list[str], site: Site) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "HOLDFAST_URL": site.url}
    # A user's worker has compiled modules. Without them the processes that come later would compile during the run.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, cwd=_ROOT, env=environment, stderr=said)
        try:
            yield process
            if process.poll() is not None:
                said.seek(0)
                words = said.read().decode(errors="replace")
                raise RuntimeError(f"{' '.join(command[1:])} has ended by itself:\n{words}")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def wait_until_done(site: Site, *working: subprocess.Popen[bytes]) -> None:
    """Without disturbing much: now and then a look at the newest that is left. Not if one of these has ended."""
    store = site.make_store()
    try:
        deadline = time.monotonic() + _PATIENCE
        while all(process.poll() is None for process in working):
            if time.monotonic() > deadline:
                raise TimeoutError("The jobs are not done.")
            await asyncio.sleep(0.2)
            if not (await store.page(_UNFINISHED, None, 1)).jobs:
                return
    finally:
        await store.close()


async def span_of(site: Site, *, is_warm: bool = False) -> Sample:
    """How fast they were: from the first start to the last end, as the store has them; see `Site.span`."""
    jobs, seconds = await site.span(is_warm=is_warm)
    return {"jobs/s": jobs / seconds}
