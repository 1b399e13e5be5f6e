"""Tasks that are alone in a process, in an embedded worker, whose loop and whose app they share nothing with."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job

_PATIENCE = 60.0
"""A limit for hangs, not a measure of speed."""
_MODULE = "embedded_app"
_APP = """
import asyncio, os, pathlib, sys, time
from holdfast import Context, Holdfast, Retry, SoftTimeout
hf = Holdfast({url!r})
once = Retry(1)
folder = pathlib.Path({folder!r})
"""

Deploy = Callable[[str], Holdfast]


@pytest.fixture
def deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deploy]:
    """Makes an app with these tasks, which other processes can import as well."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    def write(tasks: str) -> Holdfast:
        head = _APP.format(url=f"sqlite:///{tmp_path}/jobs.db", folder=str(tmp_path))
        (tmp_path / f"{_MODULE}.py").write_text(head + tasks)
        app: Holdfast = importlib.import_module(_MODULE).hf
        return app

    yield write
    sys.modules.pop(_MODULE, None)


async def _enqueue(hf: Holdfast, task: str, **arguments: Any) -> Job[Any]:
    found: Any = hf.engine.tasks[task]
    job: Job[Any] = await found.aenqueue(**arguments)
    return job


_SLOW_START = """
if "isolated" in sys.argv[0]:
    time.sleep(2.5)

@hf.task(isolation="process", timeout="2s", retry=once)
def isolated() -> str:
    return "done"

@hf.task(delivery="at_most_once", timeout="2s")
async def only_once() -> str:
    return "done"
"""


async def test_the_start_of_its_process_does_not_count_against_the_time_of_a_task(deploy: Deploy) -> None:
    hf = deploy(_SLOW_START)
    async with hf, hf.worker():
        jobs = [await _enqueue(hf, "isolated"), await _enqueue(hf, "only_once")]
        for job in jobs:
            assert await job.aresult(_PATIENCE) == "done"
            assert (await job.arecord()).runs == 1
