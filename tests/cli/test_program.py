"""The program itself."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.cli.status import Status, status_of
from holdfast.errors import InvalidURL, JobNotFound, QueueFull, SchemaTooNew, StoreUnavailable
from holdfast.stores.sqlite.migrate import shipped_migrations
from tests.cli.conftest import Run

NOW = shipped_migrations()[-1].number


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "holdfast"], [str(Path(sys.executable).parent / "holdfast")]]
)
def test_it_runs_as_a_script_and_as_a_module(command: list[str], folder: Path) -> None:
    done = subprocess.run([*command, "db", "check"], capture_output=True, text=True, check=False, cwd=folder)
    assert (done.returncode, done.stdout) == (4, "")
    assert (
        done.stderr
        == f"Error: {folder}/holdfast.db does not exist. Make it with `holdfast db migrate`, or name another.\n"
    )
    assert list(folder.iterdir()) == []


def test_it_runs_on_a_terminal_that_knows_few_characters(run: Run, folder: Path) -> None:
    run("db", "migrate")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "holdfast", "db", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert (done.returncode, done.stdout) == (0, f"? schema {NOW} is as it should be\n"), done.stderr


def test_what_it_says_to_nobody_who_looks_takes_no_rich(folder: Path) -> None:
    """A worker under a service manager starts sooner without it; where colours are wanted, they are there."""
    script = """
        import sys
        from holdfast.cli.terminal import complain, tell

        tell("so it is")
        complain("[red] is no colour")
        print("rich" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    assert (done.stdout, done.stderr) == ("False\n", "so it is\nError: [red] is no colour\n")
    environment |= {"FORCE_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    assert done.stdout == "True\n"
    assert "\x1b[" in done.stderr


def test_it_tells_its_version(run: Run) -> None:
    assert run("--version").out == f"holdfast {importlib.metadata.version('holdfast')}\n"


@pytest.mark.parametrize(
    "arguments", [["db", "chekc"], ["db", "check", "--nope"], ["db", "sql", "--from", "x"], ["nope"]]
)
def test_a_command_that_nobody_understands_ends_with_status_2(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert "--help" in ran.err


def test_every_command_has_help(run: Run) -> None:
    for command in ([], ["db"], ["db", "migrate"], ["db", "sql"], ["db", "check"]):
        ran = run(*command, "--help")
        assert ran.status == 0
        assert ran.out.startswith(f"Usage: {' '.join(['holdfast', *command])}")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFull(), Status.FAILED),
        (SchemaTooNew(), Status.FAILED),
        (InvalidURL(), Status.USAGE),
        (JobNotFound(), Status.NOT_FOUND),
        (StoreUnavailable(), Status.UNREACHABLE),
    ],
)
def test_every_error_has_its_status(error: Exception, status: Status) -> None:
    assert status_of(error) == status  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--queue", "=3"], "--queue =3: the name of the queue is missing. Write --queue high=4."),
        (["--queue", "high=0"], "--queue high=0: a queue has from 1 to 10,000 slots. Write --queue high=4."),
        (["--concurrency", "0"], "--concurrency"),
    ],
)
def test_an_option_of_the_worker_that_is_wrong_is_named(run: Run, options: list[str], message: str) -> None:
    ran = run("worker", "shop", *options)
    assert ran.status == 2
    assert message in ran.err
