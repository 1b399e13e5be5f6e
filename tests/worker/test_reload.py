"""`--reload`: code that changes is at work at once, what runs may finish, and what can't be imported is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Job
from holdfast.clock import SystemClock
from holdfast.ids import Ids
from holdfast.job import NewJob
from tests.worker.history import History
from tests.worker.program import Client, Program, client_of, until

BROKEN = "= ="  # of another length than any version: Python tells sources of one second apart by their size

APP = """
import asyncio
from pathlib import Path
from holdfast import Holdfast
hf = Holdfast()

@hf.task
async def version() -> int:
    return {version}

@hf.task
async def linger() -> int:
    with open("starts", "a") as starts:
        starts.write("x")
    while not Path("may_end").exists():
        await asyncio.sleep(0.01)
    return {version}
"""
ids = Ids(SystemClock())


@pytest.fixture
def client(tmp_path: Path, history: History) -> Iterator[Client]:
    with client_of(f"sqlite:///{tmp_path / 'jobs.db'}", history) as client:
        yield client


@pytest.fixture
def save(tmp_path: Path) -> Callable[[object], None]:
    """Writes the app anew, as an editor does."""

    def write(version: object) -> None:
        (tmp_path / "changing.py").write_text(APP.format(version=version))

    write(1)
    return write


def _enqueue(client: Client, task: str) -> Job[object]:
    new = NewJob(ids.make(), task, "default", "{}")
    client.ask(client.store.enqueue([new]))
    return client.app.job(new.id)


def _is_at_work(client: Client, version: int) -> bool:
    return _enqueue(client, "version").result("60s") == version


def test_changed_code_is_at_work_at_once_and_what_runs_may_finish(
    client: Client, tmp_path: Path, save: Callable[[object], None]
) -> None:
    with Program(client.url, client.history, "-p", "1", "--reload", app="changing:hf", folder=tmp_path) as program:
        until(lambda: _is_at_work(client, 1), "the first version")
        lingering = _enqueue(client, "linger")
        until((tmp_path / "starts").exists, "it to start")
        for version in (22, 333):  # of other lengths, see above
            save(version)
            until(lambda version=version: _is_at_work(client, version), f"version {version}")  # type: ignore[misc]
        (tmp_path / "may_end").touch()
        assert lingering.result("60s") == 1, "it has run to its end where it had begun"
        assert (tmp_path / "starts").read_text() == "x"
        assert program.stop() == 0


def test_code_that_cannot_be_imported_is_waited_for(
    client: Client, tmp_path: Path, save: Callable[[object], None]
) -> None:
    with Program(client.url, client.history, "-p", "1", "--reload", app="changing:hf", folder=tmp_path) as program:
        until(lambda: _is_at_work(client, 1), "the first version")
        save(BROKEN)
        program.says("can't be imported: SyntaxError")
        program.says("waiting for a change of the code")
        save(22)
        until(lambda: _is_at_work(client, 22), "the mended version")
        assert program.stop() == 0


def test_code_that_cannot_be_imported_from_the_beginning_is_waited_for(
    client: Client, tmp_path: Path, save: Callable[[object], None]
) -> None:
    save(BROKEN)
    with Program(client.url, client.history, "-p", "1", "--reload", app="changing:hf", folder=tmp_path) as program:
        program.says("can't be imported: SyntaxError")
        program.says("waiting for a change of the code")
        save(22)
        until(lambda: _is_at_work(client, 22), "the mended version")
        assert program.stop() == 0
