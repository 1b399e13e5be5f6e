"""Children come and go: replaced when they have done enough or use too much, and not at all if they can't start."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.ids import Ids
from holdfast.job import NewJob
from tests.worker.program import Client, Program, is_alive, until

APP = """
from holdfast import Holdfast
{body}
hf = Holdfast()

@hf.task
def nothing() -> None: ...
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module, and makes it importable for the worker."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    def write(body: str) -> str:
        (tmp_path / "broken_app.py").write_text(body)
        return "broken_app:hf"

    return write


# ── replaced ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_child_that_has_done_enough_is_replaced_and_its_long_jobs_may_finish(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "--max-jobs", "20", "--grace", "100ms") as program:
        (first,) = client.working()
        long = client.enqueue("sleep", seconds=3)
        client.started(long)
        for job in client.enqueue_many("quick", 50):
            job.result("60s")
        program.says(r"child 1 has done \d+ jobs and is replaced")
        until(lambda: [each for each in client.workers() if each.pid != first.pid], "its replacement")
        assert client.enqueue("quick", number=1).result("60s") == 1
        assert long.result("60s") == "slept"
        assert (long.record().runs, client.history.read("start", long.id)[0].pid) == (1, first.pid)
        until(lambda: first.id not in [each.id for each in client.app.workers.list()], "it to take leave")


def test_a_child_that_uses_too_much_memory_is_replaced(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "--max-memory", "400MB") as program:
        (first,) = client.working()
        job = client.enqueue("hoard", megabytes=600)
        job.result("60s")
        program.says(r"child 1 uses \d+ MB and is replaced")
        until(lambda: [each for each in client.workers() if each.pid != first.pid], "its replacement")
        assert (job.record().runs, client.enqueue("quick", number=1).result("60s")) == (1, 1)


def test_children_that_die_soon_but_have_done_something_are_replaced_without_a_pause(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1"):
        (worker,) = client.working()
        started = time.monotonic()
        for _ in range(8):
            client.enqueue("quick").result("60s")
            os.kill(worker.pid, signal.SIGKILL)
            (worker,) = until(
                lambda killed=worker.pid: [each for each in client.workers() if each.pid != killed],  # type: ignore[misc]
                "its replacement",
            )
        assert time.monotonic() - started < 25, "pauses that grow would have taken longer than that alone"


# ── that can't start ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (APP.format(body="raise RuntimeError('not today')"), "RuntimeError: not today"),
        (APP.format(body="import sys; sys.exit(5)"), "while it was imported, with SystemExit(5)"),
    ],
)
def test_an_app_that_cannot_be_imported_is_told_and_ends_the_worker(
    client: Client, broken: Callable[[str], str], body: str, said: str
) -> None:
    with Program(client.url, client.history, "-p", "2", app=broken(body)) as program:
        assert program.wait() == 1
        assert said in program.output
        assert "can't be run" in program.output
        assert program.output.count(said) <= 4, "it is said once, not by each of them"


def test_hooks_that_fail_are_told_and_end_the_worker(client: Client, broken: Callable[[str], str]) -> None:
    body = (
        APP.format(body="") + "\n@hf.on_startup\ndef connect(state):\n    raise RuntimeError('no way to the cache')\n"
    )
    with Program(client.url, client.history, "-p", "1", app=broken(body)) as program:
        assert program.wait() == 1
        assert "The app can't start: RuntimeError: no way to the cache" in program.output
        assert client.workers() == []


def test_children_that_die_at_once_are_started_again_more_and_more_slowly(
    client: Client, broken: Callable[[str], str]
) -> None:
    body = APP.format(body="") + "\n@hf.on_startup\ndef die(state):\n    import os; os._exit(9)\n"
    with Program(client.url, client.history, "-p", "1", app=broken(body)) as program:
        program.says("child 3 ended with status 9")
        assert "child 5 " not in program.output
        program.send(signal.SIGTERM)
        assert program.wait() == 0


def test_an_app_that_breaks_later_does_not_end_a_worker_that_works(
    client: Client, broken: Callable[[str], str]
) -> None:
    """As when a deploy replaces the files while a child is to be replaced."""
    body = APP.format(body="")
    with Program(client.url, client.history, "-p", "1", app=broken(body)) as program:
        (first,) = client.working()
        program.says("SIGQUIT shows what runs")
        while "spare" not in program.output:
            program.send(signal.SIGQUIT)
            program.says(r"child 2 \(")
            time.sleep(0.1)
        broken("raise RuntimeError('half copied')")
        os.kill(first.pid, signal.SIGKILL)
        (second,) = until(lambda: [each for each in client.workers() if each.pid != first.pid], "the spare to step in")
        program.says("half copied")
        os.kill(second.pid, signal.SIGKILL)
        program.says("child 2 was killed by SIGKILL")
        broken(body)
        until(lambda: [each for each in client.workers() if each.pid not in (first.pid, second.pid)], "another one")
        assert program.stop() == 0


def test_a_hook_that_never_ends_when_it_stops_does_not_keep_the_worker(
    client: Client, broken: Callable[[str], str]
) -> None:
    body = APP.format(body="") + "\n@hf.on_shutdown\ndef hang(state):\n    import time; time.sleep(3600)\n"
    with Program(client.url, client.history, "-p", "1", "--grace", "100ms", app=broken(body)) as program:
        client.working()
        assert program.stop() == 0
        assert client.workers() == []


def test_an_isolated_process_whose_hook_never_ends_is_killed_within_the_grace(
    client: Client, broken: Callable[[str], str]
) -> None:
    body = APP.format(body="") + (
        "\n@hf.task(isolation='process')\ndef alone() -> int:\n    import os; return os.getpid()\n"
        "\n@hf.on_shutdown\ndef hang(state):\n    import os, sys, time\n"
        "    time.sleep(0 if 'child' in str(sys.argv[0]) else 3600)\n"
    )
    with Program(client.url, client.history, "-p", "1", "--grace", "1s", app=broken(body)) as program:
        client.working()
        new = NewJob(Ids(SystemClock()).make(), "alone", "default", "{}")
        client.ask(client.store.enqueue([new]))
        pid = client.app.job(new.id).result("60s")
        assert program.stop() == 0
        assert "took longer than 1 s: it is killed" in program.output
        assert not is_alive(pid)
