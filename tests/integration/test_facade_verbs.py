"""Every verb that does I/O has two forms, and the plain one refuses to block a running event loop."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job, RunningLoop
from holdfast.ids import Ids
from holdfast.task import Prepared, Task

ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Dead.discard": ((), {"everything": True}),
    "Dead.retry": ((), {"everything": True}),
    "Holdfast.enqueue_many": (([],), {}),
    "Holdfast.send": (("echo", {"n": 1}), {}),
    "Jobs.attempts": ((Ids().make(),), {}),
    "Jobs.cancel": ((), {"everything": True}),
    "Jobs.explain": ((Ids().make(),), {}),
    "Jobs.get": ((Ids().make(),), {}),
    "Limits.reset": (("echo",), {}),
    "Limits.set": (("echo", 1), {}),
    "Prepared.enqueue": ((1,), {}),
    "Queues.bound": (("default", 1), {}),
    "Queues.pause": (("default",), {}),
    "Queues.resume": (("default",), {}),
    "Task.enqueue": ((1,), {}),
    "Workers.quiet": ((Ids().make(),), {}),
}
"""What a verb must be given; the others need nothing."""

WITHOUT_IO = {
    "Holdfast": {
        *("at", "breaker", "cron", "every", "job", "middleware", "on_dead", "on_shutdown", "on_startup"),
        *("task", "testing", "worker"),
    },
    "Job": set[str](),
    "Prepared": {"call", "new_job"},
    "Task": {"call", "check_arguments", "definition", "job", "on_dead", "options", "read_result", "recipe"},
}
"""Methods that open nothing, or are there for handles only, so that they need no second form."""


def make_app(database: Path) -> tuple[Holdfast, dict[str, Any]]:
    """An app, and everything that has verbs, by the name of its class."""
    hf = Holdfast(f"sqlite:///{database}")

    @hf.task
    def echo(n: int) -> int:
        return n

    modules = ("holdfast.namespaces", "holdfast.limiting")
    namespaces = [value for name, value in vars(hf).items() if type(value).__module__ in modules]
    assert len(namespaces) >= 5
    owners: list[Any] = [hf, echo, echo.options(queue="other"), hf.job(Ids().make()), *namespaces]
    names = {Task: "Task", Prepared: "Prepared", Job: "Job", Holdfast: "Holdfast"}
    named = {
        next((name for kind, name in names.items() if isinstance(owner, kind)), type(owner).__name__): owner
        for owner in owners
    }
    return hf, named


def public_methods(owner: Any) -> dict[str, Any]:
    return {
        name: getattr(owner, name)
        for name, value in inspect.getmembers_static(type(owner))
        if not name.startswith("_") and inspect.isfunction(value)
    }


def is_awaited(method: Any) -> bool:
    """Whether it is `async def`, or a `def` that hands on the coroutine of another one."""
    return inspect.iscoroutinefunction(method) or str(inspect.signature(method).return_annotation).startswith("Corout")


def two_forms() -> list[tuple[str, str]]:
    """Every verb with a form `x` and a form `ax`."""
    _, owners = make_app(Path("/nowhere/jobs.db"))  # nothing is opened
    return [
        (kind, name)
        for kind, owner in sorted(owners.items())
        for name in public_methods(owner)
        if f"a{name}" in public_methods(owner)
    ]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[dict[str, Any]]:
    hf, owners = make_app(tmp_path / "jobs.db")
    yield owners
    hf.close()


def test_every_verb_was_found() -> None:
    assert len(two_forms()) >= 25
    kinds = {kind for kind, _ in two_forms()}
    assert kinds >= {"Dead", "Holdfast", "Job", "Jobs", "Limits", "Prepared", "Queues", "Task", "Workers"}
    assert {f"{kind}.{name}" for kind, name in two_forms()} >= ARGUMENTS.keys()


@pytest.mark.parametrize(("kind", "name"), two_forms(), ids=str)
async def test_a_plain_verb_refuses_on_a_running_loop(app: dict[str, Any], kind: str, name: str) -> None:
    args, kwargs = ARGUMENTS.get(f"{kind}.{name}", ((), {}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RunningLoop, match=rf"await [\w.]*\ba{name}\("):
            getattr(app[kind], name)(*args, **kwargs)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize(("kind", "name"), two_forms(), ids=str)
def test_both_forms_take_the_same(app: dict[str, Any], kind: str, name: str) -> None:
    plain, awaited = getattr(app[kind], name), getattr(app[kind], f"a{name}")
    assert is_awaited(awaited)
    assert not is_awaited(plain)
    assert inspect.signature(plain).parameters == inspect.signature(awaited).parameters


def test_every_verb_has_its_other_form(app: dict[str, Any]) -> None:
    for kind, owner in app.items():
        methods = public_methods(owner)
        for name in methods.keys() - WITHOUT_IO.get(kind, set()):
            if is_awaited(methods[name]):
                assert name.startswith("a"), f"{kind}.{name}"
                assert name[1:] in methods, f"{kind}.{name} has no plain form"
            else:
                assert f"a{name}" in methods, f"{kind}.{name} has no async form"


def test_the_advice_names_the_very_call(app: dict[str, Any]) -> None:
    """`await hf.jobs.acount(…)`: what stands before the dot is what the user wrote."""
    expected = {"Holdfast": "hf", "Task": "echo", "Prepared": "echo", "Job": "job"}

    async def refusals() -> dict[str, str]:
        found = {}
        for kind, name in two_forms():
            args, kwargs = ARGUMENTS.get(f"{kind}.{name}", ((), {}))
            with pytest.raises(RunningLoop) as refused:
                getattr(app[kind], name)(*args, **kwargs)
            found[f"{kind}.{name}"] = str(refused.value)
        return found

    import asyncio

    for verb, message in asyncio.run(refusals()).items():
        kind, name = verb.split(".")
        owner = expected.get(kind, f"hf.{kind.lower()}")
        assert f"`await {owner}.a{name}(…)`" in message
