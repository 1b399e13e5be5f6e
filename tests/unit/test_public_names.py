"""What `import holdfast` gives, what it costs, and what it must not do."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast

PUBLIC = [
    "AsyncTask",
    "Attempt",
    "Breaker",
    "BreakerNotFound",
    "BreakerOpen",
    "BreakerPolicy",
    "BreakerRecord",
    "BreakerState",
    "Call",
    "Cancel",
    "ConfigurationError",
    "Context",
    "DeadJob",
    "Done",
    "DuplicateTask",
    "Explanation",
    "Failure",
    "FailureKind",
    "GiveUp",
    "Holdfast",
    "HoldfastError",
    "IdempotencyConflict",
    "InvalidOption",
    "InvalidPayload",
    "InvalidTask",
    "InvalidTransaction",
    "InvalidURL",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobRecord",
    "JobState",
    "Limit",
    "LimitNotFound",
    "LimitRecord",
    "MissingDriver",
    "NotAllowedInState",
    "Order",
    "OutcomeUnknown",
    "Page",
    "PayloadTooLarge",
    "Plan",
    "PoolFull",
    "Progress",
    "Queue",
    "QueueFull",
    "QueueRecord",
    "Rate",
    "RateLimited",
    "Reason",
    "ReasonKind",
    "ResultTimeout",
    "Retention",
    "Retry",
    "RunningLoop",
    "ScheduleNotFound",
    "ScheduleRecord",
    "SchemaMismatch",
    "SchemaOutdated",
    "SchemaTooNew",
    "Snooze",
    "SoftTimeout",
    "State",
    "StoreError",
    "StoreUnavailable",
    "SyncTask",
    "Task",
    "TaskDefaults",
    "TickRecord",
    "TransactionLost",
    "TryAgain",
    "Unique",
    "UnknownTask",
    "WaitingInTask",
    "WorkerDeclaredDead",
    "WorkerRecord",
    "WrongDatabase",
]

CALLER_ERRORS = {  # API.md: "Errors a caller meets"
    "IdempotencyConflict",
    "InvalidPayload",
    "JobFailed",
    "JobNotFound",
    "NotAllowedInState",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "QueueFull",
    "StoreUnavailable",
    "UnknownTask",
    "WaitingInTask",
    "WrongDatabase",
}

NAMESPACES = ("jobs", "dead", "queues", "schedules", "limits", "breakers", "workers")


def public_objects() -> Iterator[tuple[str, Any]]:
    """Every public class and function, the namespaces' classes, and all that is public in them."""
    app = holdfast.Holdfast("memory://")
    owners: dict[str, Any] = {name: getattr(holdfast, name) for name in PUBLIC}
    owners |= {f"hf.{name}": type(getattr(app, name)) for name in NAMESPACES}
    owners["options()"] = type(holdfast.Holdfast("memory://").task(_nothing).options(delay=1))
    for name, owner in owners.items():
        yield name, owner
        if inspect.isclass(owner):
            for attribute, value in vars(owner).items():
                if not attribute.startswith("_") and inspect.isroutine(value):
                    yield f"{name}.{attribute}", value


def _nothing() -> None:
    """A task, for the class that options() returns."""


def own_docstring(thing: Any) -> str:
    """A class's own words: those of a base class, or what a dataclass makes up, don't count."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else inspect.getdoc(thing)
    made_up = inspect.isclass(thing) and (text or "").startswith(f"{thing.__name__}(")
    return "" if text is None or made_up else text.strip()


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(holdfast.__all__) == PUBLIC


def test_no_name_is_listed_twice() -> None:
    assert len(holdfast.__all__) == len(set(holdfast.__all__))


def test_whatever_the_module_holds_is_public_or_a_submodule() -> None:
    held = {
        name for name, value in vars(holdfast).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert held == set(PUBLIC)


def test_a_star_import_gives_the_public_names_and_no_other() -> None:
    script = "from holdfast import *; print(*sorted(name for name in dir() if not name.startswith('_')))"
    assert run_python(script).split() == PUBLIC


def test_every_error_that_a_caller_meets_is_public_and_of_one_family() -> None:
    assert set(PUBLIC) >= CALLER_ERRORS
    assert all(issubclass(getattr(holdfast, name), holdfast.HoldfastError) for name in CALLER_ERRORS)


def test_every_error_of_the_package_is_public() -> None:
    from holdfast import errors

    defined = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert defined <= set(PUBLIC)


def test_everything_public_says_what_it_promises() -> None:
    assert [name for name, thing in public_objects() if len(own_docstring(thing)) < 10] == []


def test_every_verb_with_input_and_output_has_an_async_form() -> None:
    app = holdfast.Holdfast("memory://")
    holders = [app, *(getattr(app, name) for name in NAMESPACES), app.job("019a0000-0000-7000-8000-000000000000")]
    # These do no I/O.
    plain_only = {"task", "breaker", "cron", "every", "at", "job", "on_startup", "on_shutdown", "middleware", "on_dead"}
    plain_only |= {"worker", "testing"}
    for holder in holders:
        verbs = {name for name in dir(holder) if name[0] != "_" and inspect.isroutine(getattr(holder, name))}
        coroutines = {name for name in verbs if inspect.iscoroutinefunction(getattr(holder, name))}
        assert {f"a{name}" for name in verbs - coroutines - plain_only} == coroutines


# ── what importing and constructing does not do ──────────────────────────────────────────────────────────────────────


def run_python(script: str, cwd: Path | None = None, **environment: str) -> str:
    """Run a script in an interpreter of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        check=False,
        cwd=cwd,
        env={**{name: value for name, value in os.environ.items() if name != "HOLDFAST_URL"}, **environment},
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that are there after `import holdfast` and were not before."""
    script = "import sys; before = set(sys.modules); import holdfast; print(*(set(sys.modules) - before))"
    return set(run_python(script).split())


@pytest.mark.parametrize(
    "module", ["asyncpg", "gevent", "hiredis", "jsonschema_rs", "pydantic", "pytest", "redis", "uvloop"]
)
def test_importing_holdfast_does_not_import(loaded: set[str], module: str) -> None:
    assert not {name for name in loaded if name.partition(".")[0] == module}


def test_importing_holdfast_imports_none_of_its_test_suite(loaded: set[str]) -> None:
    assert "holdfast" in loaded
    assert not {name for name in loaded if name.startswith("holdfast.testing")}


DECLARE = """
    import os, sqlite3, sys, threading
    from pathlib import Path

    seen = []
    def hook(event, arguments):
        if event in ("open", "sqlite3.connect", "socket.__new__", "socket.connect", "subprocess.Popen", "os.fork",
                     "_thread.start_new_thread", "os.mkdir", "os.rename", "os.remove"):
            seen.append((event, arguments))

    import holdfast
    from holdfast import Context, Holdfast, Queue, Retention, Retry, TaskDefaults, Unique

    files = sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else []
    sys.addaudithook(hook)
    hf = Holdfast(URL, imports=["no.such.module"], queues=[Queue("email", bound=50_000)],
                  defaults=TaskDefaults(timeout="1m"), retention=Retention(completed="1h"))

    @hf.task
    async def send_receipt(order_id: int) -> str:
        return ""

    @hf.task(bind=True, queue="media", retry=Retry(8), unique=Unique("{url}", window="10m"), idempotency_key="{size}")
    def resize(ctx: Context, url: "Nowhere", size: "int" = 100) -> "AlsoNowhere":
        return url

    send_receipt.options(delay="5m", tags=["vip"])
    hf.job("019a0000-0000-7000-8000-000000000000"), send_receipt.job("019a0000-0000-7000-8000-000000000000")
    repr(hf), repr(send_receipt), hf.jobs, hf.dead, hf.queues, hf.workers

    events = list(seen)
    assert not events, events
    assert threading.active_count() == 1, threading.enumerate()
    if os.path.exists("/proc/self/task"):
        assert len(os.listdir("/proc/self/task")) == 1, os.listdir("/proc/self/task")
        assert sorted(os.listdir("/proc/self/fd")) == files
    assert not list(Path().iterdir()), list(Path().iterdir())
    print(hf)
"""


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "memory://", "sqlite:////no/such/folder/jobs.db", None])
def test_making_an_app_and_tasks_opens_no_file_and_starts_no_thread(tmp_path: Path, url: str | None) -> None:
    printed = run_python(f"URL = {url!r}\n{textwrap.dedent(DECLARE)}", cwd=tmp_path)
    assert printed.strip() == f"<Holdfast {url or 'sqlite:///holdfast.db'}>"
    assert list(tmp_path.iterdir()) == []


def test_the_url_comes_from_the_argument_then_the_environment_then_the_default(tmp_path: Path) -> None:
    script = "from holdfast import Holdfast; print(Holdfast(URL).url)"
    assert run_python(f"URL = 'memory://'; {script}", tmp_path, HOLDFAST_URL="sqlite:///other.db") == "memory://\n"
    assert run_python(f"URL = None; {script}", tmp_path, HOLDFAST_URL="sqlite:///other.db") == "sqlite:///other.db\n"
    assert run_python(f"URL = None; {script}", tmp_path) == "sqlite:///holdfast.db\n"


def test_a_relative_path_means_the_folder_of_the_construction(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    script = """
        import os
        from holdfast import Holdfast
        hf = Holdfast("sqlite:///jobs.db")
        os.chdir("../there")
        print(hf.jobs.count())
        hf.close()
    """
    assert run_python(script, cwd=tmp_path / "here") == "0\n"
    assert (tmp_path / "here" / "jobs.db").exists()
    assert list((tmp_path / "there").iterdir()) == []
