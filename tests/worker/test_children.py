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
from tests.worker.history import History
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


def test_there_are_no_more_children_that_finish_long_jobs_than_others(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "-c", "8", "--max-jobs", "1"):
        client.working()
        for number in range(4):
            client.started(client.enqueue("sleep", seconds=3600))
            assert client.enqueue("quick", number=number).result("60s") == number
            until(lambda: len(client.workers()) == 2, "the first one to be replaced")
            assert client.enqueue("quick", number=number).result("60s") == number, "there is one that takes jobs"
        assert len(client.workers()) == 2


_IMPATIENT = """
import holdfast.supervision.supervisor as supervisor
supervisor._TELL_BLOCKED_AFTER = 0.5
supervisor._REPLACE_BLOCKED_AFTER = 1.5
"""


def test_a_child_that_a_task_blocks_while_work_waits_is_replaced_and_only_that_task_is_charged(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", prelude=_IMPATIENT) as program:
        (first,) = client.working()
        neighbour = client.enqueue("sleep", seconds=2)
        blocking = client.enqueue("block_for_long")
        client.started(neighbour)
        client.started(blocking)
        waiting = client.enqueue("quick", number=7)
        program.says(r"its event loop has been blocked for \d+ s by block_for_long")
        program.says(r"blocked for \d+ s by block_for_long .*, it is replaced")
        assert waiting.result("60s") == 7
        assert neighbour.result("60s") == "slept"
        assert (neighbour.record().attempt, neighbour.record().crashes) == (1, 0)
        assert client.kinds(blocking)[0] == "timeout"
        until(lambda: [each for each in client.workers() if each.pid != first.pid], "its replacement")


def test_a_child_that_is_blocked_while_nothing_waits_is_left_to_its_timeout(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", prelude=_IMPATIENT) as program:
        client.working()
        blocking = client.enqueue("block_for_long", seconds=5)
        program.says(r"its event loop has been blocked for \d+ s by block_for_long")
        assert blocking.result("60s") == "went on"
        assert blocking.record().runs == 1


def test_a_child_that_uses_too_much_memory_is_replaced(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "--max-memory", "400MB") as program:
        (first,) = client.working()
        job = client.enqueue("hoard", megabytes=600)
        job.result("60s")
        program.says(r"child 1 uses \d+ MB and is replaced")
        until(lambda: [each for each in client.workers() if each.pid != first.pid], "its replacement")
        assert (job.record().runs, client.enqueue("quick", number=1).result("60s")) == (1, 1)


_LOOKS_OFTEN = "import holdfast.supervision.supervisor as supervisor; supervisor._LOOK_EVERY = 0.05"


def test_a_child_that_is_too_large_before_its_first_job_is_not_replaced_for_nothing(client: Client) -> None:
    with Program(client.url, client.history, "-p", "1", "--max-memory", "20MB", prelude=_LOOKS_OFTEN) as program:
        (first,) = client.working()
        program.says(r"a child uses \d+ MB before its first job, more than --max-memory allows")
        watch_until = time.monotonic() + 1
        while time.monotonic() < watch_until:
            assert [each.pid for each in client.workers()] == [first.pid]
        assert client.enqueue("quick", number=1).result("60s") == 1
        until(lambda: [each for each in client.workers() if each.pid != first.pid], "its replacement")


def test_the_process_of_an_isolated_job_that_uses_too_much_memory_is_replaced_when_the_job_is_done(
    client: Client,
) -> None:
    with Program(client.url, client.history, "-p", "1", "--max-memory", "400MB") as program:
        (child,) = client.working()
        small = client.enqueue("alone_hoard", megabytes=1).result("60s")
        large = client.enqueue("alone_hoard", megabytes=600).result("60s")
        assert large == small, "the first one was kept"
        program.says(rf"process {large} of isolated jobs uses \d+ MB and is replaced")
        assert client.enqueue("alone_hoard", megabytes=1).result("60s") != large
        until(lambda: not is_alive(large), "its end")
        assert large in [event.pid for event in client.history.read("shutdown")], "in good order"
        assert [each.pid for each in client.workers()] == [child.pid], "its child is as it was"


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


_STARTS_SOON = """
import holdfast.supervision.supervisor as supervisor
supervisor._LOOK_EVERY = 0.1
supervisor._TELL_STARTING_AFTER = 0.5
supervisor._LONGEST_START = 5.0
"""
_HANGS_ONCE = """
def hang():
    import time
    from tests.worker.history import here
    here().write("begins")
    if len(here().read("begins")) == 1:
        time.sleep(3600)
"""
_HOOK = """
@hf.on_startup
def connect(state):
    hang()
"""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (APP.format(body=f"{_HANGS_ONCE}\nhang()\n"), "to import the app"),
        (APP.format(body=_HANGS_ONCE) + _HOOK, "its start, with the hooks of on_startup,"),
    ],
    ids=["import", "hook"],
)
def test_a_child_that_hangs_while_it_starts_is_told_and_replaced_and_one_that_works_is_left_alone(
    client: Client, broken: Callable[[str], str], body: str, what: str
) -> None:
    with Program(client.url, client.history, "-p", "1", app=broken(body), prelude=_STARTS_SOON) as program:
        program.says(f"child 1 has not begun to work yet: {what} takes its time")
        program.says(f"child 1 is replaced: {what} took longer than 5 s")
        program.is_listening()
        hung = client.history.read("begins")[0].pid
        (worker,) = until(lambda: [each for each in client.workers() if each.pid != hung], "its replacement")
        longer = time.monotonic() + 6
        until(lambda: time.monotonic() > longer, "a longer time than a start may take")
        assert [each.pid for each in client.workers()] == [worker.pid]
        assert program.stop() == 0


def test_a_worker_whose_first_import_hangs_can_be_stopped(client: Client, broken: Callable[[str], str]) -> None:
    body = APP.format(body=f"{_HANGS_ONCE}\nhang()\n")
    with Program(client.url, client.history, "-p", "1", app=broken(body), prelude=_STARTS_SOON) as program:
        program.says("child 1 has not begun to work yet")
        assert program.stop() == 0


_WRITES_DOWN_STARTS = """
from holdfast.supervision.supervisor import Supervisor
from tests.worker.history import here

def before(name, what):
    real = getattr(Supervisor, name)
    def call(self):
        here().write(what)
        return real(self)
    setattr(Supervisor, name, call)

before("_start_child", "starts a child")
before("_pause_before_the_next", "has lost a child")
"""


def _waits(history: History) -> list[tuple[int, float]]:
    """How long a child that was started after a second failure, or a later one, had to wait, and after which."""
    waits, failures, failed_at = [], 0, 0.0
    for event in history.read():
        if event.what == "has lost a child":
            failures, failed_at = failures + 1, event.at
        elif event.what == "starts a child" and failures > 1:
            waits.append((failures, event.at - failed_at))
    return waits


def test_children_that_die_at_once_are_started_again_more_and_more_slowly(
    client: Client, broken: Callable[[str], str]
) -> None:
    body = APP.format(body="") + "\n@hf.on_startup\ndef die(state):\n    import os; os._exit(9)\n"
    with Program(client.url, client.history, "-p", "1", app=broken(body), prelude=_WRITES_DOWN_STARTS) as program:
        waits = until(lambda: found if len(dict(found := _waits(client.history))) >= 2 else None, "two pauses")
        program.send(signal.SIGTERM)
        assert program.wait() == 0
    for failures, wait in waits:
        assert wait >= min(0.5 * 2**failures, 30), f"the pause after failure {failures}, and it may be longer"


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


# ── what is said of them ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_the_worker_has_made_is_said_to_be_created(url: str, history: History) -> None:
    """Whoever reads it notices a mistaken path."""
    path = url.removeprefix("sqlite:///")
    for expected in (rf"{path} \(created\)\n", rf"{path}\n"):
        with Program(url, history, "-p", "1") as program:
            program.says(expected)


def test_a_database_that_is_away_at_the_start_is_the_last_word(tmp_path: Path, history: History) -> None:
    (tmp_path / "file").touch()
    with Program(f"sqlite:///{tmp_path}/file/jobs.db", history, "-p", "1") as program:
        assert program.wait() != 0
        assert program.output.splitlines()[-1].startswith("Error: ")
        assert "stopped" not in program.output


def test_a_spare_child_is_called_so(client: Client) -> None:
    pytest.importorskip("setproctitle")
    with Program(client.url, client.history, "-p", "1") as program:
        client.working()

        def names() -> list[str]:
            shown = [Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0") for pid in program.children()]
            return sorted(name.partition("[")[2] for name in shown)

        until(lambda: names() == ["1]", "2] spare"], "one that works and one that is spare")
