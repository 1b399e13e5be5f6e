"""The code of the README runs as it stands."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
from holdfast.lifecycle import Complete
from holdfast.store import NewWorker, Settlement
from holdfast.stores.sqlite import SqliteStore

README = Path(__file__).parents[2] / "README.md"


def test_the_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    with working_on(tmp_path / "shop.db"):
        run(blocks[0], names)
    assert names["job"].result(timeout="10s") == "done"
    run(blocks[1], names)
    hf: Holdfast = names["hf"]
    assert hf.jobs.count(task="send_receipt") == 1000
    assert hf.jobs.count(state="completed") == 1
    assert [queue.name for queue in hf.queues.list() if queue.is_paused] == ["mail"]
    hf.close()


def run(block: str, names: dict[str, Any]) -> None:
    """Statement by statement, as at a prompt: those with an await on a loop of their own."""
    for statement in ast.parse(block).body:
        module = ast.Module([statement], [])
        code = compile(module, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)


@contextmanager
def working_on(path: Path) -> Iterator[None]:
    """A worker that completes everything, in a thread of its own."""
    is_over = threading.Event()

    async def work() -> None:
        store, worker = SqliteStore(path), uuid4()
        await store.register(NewWorker(worker, "readme"))
        while not is_over.is_set():
            jobs = await store.claim(worker, uuid4(), {"mail": 10})
            await store.settle([Settlement(job.id, job.token, Complete('"done"')) for job in jobs])
            await asyncio.sleep(0.01)
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
