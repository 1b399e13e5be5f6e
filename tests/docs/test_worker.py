"""The code of the guide to the worker runs as it stands."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from holdfast import Context, DeadJob, Holdfast, JobFailed, SoftTimeout, State

GUIDE = (Path(__file__).parents[2] / "docs" / "worker.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


class Pool:
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def namespace(tmp_path: Path) -> dict[str, Any]:
    pool, alerts = Pool(), asyncio.Queue[str]()

    async def open_pool() -> Pool:
        return pool

    return {
        "hf": Holdfast(f"sqlite:///{tmp_path}/jobs.db"),
        "State": State,
        "Context": Context,
        "DeadJob": DeadJob,
        "SoftTimeout": SoftTimeout,
        "AsyncIterator": AsyncIterator,
        "asynccontextmanager": asynccontextmanager,
        "time": time,
        "FastAPI": FastAPI,
        "open_pool": open_pool,
        "alert": alerts.put,
        "pool": pool,
        "alerts": alerts,
    }


def test_every_block_is_known() -> None:
    assert len(BLOCKS) == 4


def test_the_guide_names_all_that_a_context_has() -> None:
    has = {name for name in vars(Context) if not name.startswith("_")} - {"open_transaction", "log_fields"}
    assert {name for name in has if f"`ctx.{name}" not in GUIDE} == set()
    assert {name for name in re.findall(r"ctx\.(\w+)", GUIDE) if not hasattr(Context, name)} == set()


async def test_tasks_and_hooks_run_in_an_embedded_worker(namespace: dict[str, Any]) -> None:
    timeouts, hooks, embedded, _ = BLOCKS
    exec(timeouts + hooks, namespace)  # noqa: S102
    hf: Holdfast = namespace["hf"]

    @hf.task(bind=True, retry=__import__("holdfast").Retry(1))
    async def breaks(ctx: Context) -> None:
        assert ctx.state.db is namespace["pool"]
        raise ValueError("broken")

    namespace["work"] = lambda: (namespace["render"], breaks)
    body = embedded.replace("    ...", "    await check()")
    alerts: asyncio.Queue[str] = namespace["alerts"]

    async def check() -> None:
        job = await namespace["render"].aenqueue("index")
        await job.aresult("20s")
        dead = await breaks.aenqueue()
        with pytest.raises(JobFailed, match="broken"):
            await dead.aresult("20s")
        async with asyncio.timeout(20):
            assert await alerts.get() == f"breaks {dead.id}: broken"

    namespace["check"] = check
    exec(f"async def main():\n{''.join('    ' + line + chr(10) for line in body.splitlines())}", namespace)  # noqa: S102
    await namespace["main"]()
    assert namespace["pool"].is_closed
    await hf.aclose()


def test_the_fastapi_app_runs_jobs(namespace: dict[str, Any]) -> None:
    hf: Holdfast = namespace["hf"]

    @hf.task
    async def add(one: int, other: int) -> int:
        return one + other

    exec(BLOCKS[3], namespace)  # noqa: S102
    web: FastAPI = namespace["web"]

    @web.get("/sum")
    async def total() -> int:
        job = await add.aenqueue(1, 2)
        return await job.aresult("20s")

    with TestClient(web) as client:
        assert client.get("/sum").json() == 3
