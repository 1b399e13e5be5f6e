"""Schedules that the code declares: `@hf.cron`, `@hf.every`, `@hf.at`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar, overload

from msgspec.structs import replace

from holdfast.engine import Engine
from holdfast.errors import InvalidOption, InvalidPayload
from holdfast.options import TaskOptions
from holdfast.planning import ScheduleOptions, check_schedule_args, check_schedule_options
from holdfast.schedule import Plan, check_plan
from holdfast.store import check_name
from holdfast.task import AsyncTask, SyncTask, Task

P = ParamSpec("P")
T = TypeVar("T")

_OF_SCHEDULES: Final = frozenset(ScheduleOptions.__annotations__)
_OF_BOTH: Final = ("name", "queue", "priority")
"""Options of a task that a schedule may have, too: given to one that is there already, they are the schedule's."""


class ScheduleDecorator(Protocol):
    """Makes a function a task that is scheduled, or schedules a task that is there."""

    @overload
    def __call__(self, function: AsyncTask[P, T], /) -> AsyncTask[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: SyncTask[P, T], /) -> SyncTask[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncTask[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, T], /) -> SyncTask[P, T]: ...


@dataclass(frozen=True)
class CodeSchedule:
    """A schedule of a task of this app. Its arguments are checked by the task's signature when it is first used."""

    name: str
    task: Task[Any, Any]
    outline: Plan
    args: Mapping[str, Any]

    @property
    def place(self) -> str:
        return self.task.place

    def plan(self) -> Plan:
        try:
            payload = self.task.signature.encode((), dict(self.args))
        except InvalidPayload as error:
            raise InvalidOption(f"schedule {self.name!r}: args= does not fit its task. {error}") from error
        return replace(self.outline, args_json=payload)


class Timetable:
    """What one decorator was given: checked at once, and declared for whatever it decorates."""

    def __init__(self, timing: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """`timing` is one of cron, every and at; `options` are those of a schedule and of a task."""
        self._fields = check_schedule_options(
            {**timing, **{name: value for name, value in options.items() if name in _OF_SCHEDULES}}
        )
        self._args = check_schedule_args(options.get("args", {}))
        self.task_options: TaskOptions = {  # type: ignore[assignment]
            name: value for name, value in options.items() if name not in _OF_SCHEDULES
        }
        check_plan(Plan(task="", **self._fields))

    def declare(self, engine: Engine, task: Task[Any, Any]) -> None:
        """Schedule a task that was made for it."""
        self._register(engine, task.name, task, {})

    def declare_further(self, engine: Engine, task: Task[Any, Any]) -> None:
        """Schedule a task that was there before, which keeps its own options."""
        given: dict[str, Any] = dict(self.task_options)
        name = check_name(given.pop("name", task.name), "name")
        for option in given:
            if option not in _OF_BOTH:
                raise InvalidOption(
                    f"{option}= can't be given here: {task.name!r} is a task already. Give it to @hf.task instead."
                )
        if engine.tasks.get(task.name) is not task:
            raise InvalidOption(f"{task.name!r} is a task of another app. Schedule it there.")
        self._register(engine, name, task, check_schedule_options(given))

    def _register(self, engine: Engine, name: str, task: Task[Any, Any], fields: Mapping[str, Any]) -> None:
        _check_names(name, task, self._args)
        outline = check_plan(Plan(task=task.name, **self._fields, **fields))
        engine.register_schedule(CodeSchedule(name, task, outline, self._args))


def _check_names(name: str, task: Task[Any, Any], args: Mapping[str, Any]) -> None:
    signature = task.signature
    for parameter in signature.required:
        if parameter not in args:
            raise InvalidOption(
                f"schedule {name!r}: nobody passes {parameter} when it is time. Give it a default, or say "
                f"args={{'{parameter}': …}}. It is {signature}."
            )
    for argument in args:
        if argument not in signature.parameters and not signature.accepts_extra:
            raise InvalidOption(
                f"schedule {name!r}: args= has {argument!r}, which its task does not take: {signature}."
            )
