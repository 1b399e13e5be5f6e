"""Steering schedules: `hf.schedules`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack

from holdfast import schedule
from holdfast.engine import Engine
from holdfast.errors import InvalidOption, ScheduleNotFound
from holdfast.handle import UNTYPED, Job
from holdfast.namespaces import Namespace
from holdfast.options import PLAIN, refuse_unknown
from holdfast.planning import PlanOptions, check_schedule_args, check_schedule_options
from holdfast.schedule import Plan, ScheduleRecord, TickRecord, check_plan
from holdfast.sending import prepare
from holdfast.store import TaskDefinition, check_limit, check_name
from holdfast.task import Task
from holdfast.tick import extra_job

Changed = TypeVar("Changed", bound="ScheduleRecord | None")


class Schedules(Namespace):
    """What is enqueued again and again: by the code, or added here, also for tasks whose code is elsewhere.

    What is changed here overrides what the code says, until it is reset; a record shows both.
    """

    async def aall(self) -> list[ScheduleRecord]:
        """All schedules that workers have declared or somebody has added, by name; also those that were removed."""
        return await (await self._engine.ready()).schedules()

    def all(self) -> list[ScheduleRecord]:
        """`aall` for synchronous code."""
        return self._engine.wait(self.aall(), "hf.schedules.aall")

    async def aget(self, name: str) -> ScheduleRecord:
        """All that is known of a schedule; ScheduleNotFound if there is none."""
        store = await self._engine.ready()
        found = await store.schedules([check_name(name, "name")])
        if not found:
            names = [record.name for record in await store.schedules()]
            raise ScheduleNotFound(_unknown(name, names))
        return found[0]

    def get(self, name: str) -> ScheduleRecord:
        """`aget` for synchronous code."""
        return self._engine.wait(self.aget(name), "hf.schedules.aget")

    async def aadd(self, name: str, task: str | Task[Any, Any], **options: Unpack[PlanOptions]) -> ScheduleRecord:
        """Schedule a task, by name, with one of `cron`, `every` and `at`. It fires from now on, never for the past."""
        refuse_unknown(options, PlanOptions, "hf.schedules.add()")
        check_name(name, "name")
        task_name = task.name if isinstance(task, Task) else check_name(task, "task")
        fields = check_schedule_options(options)
        payload = await self._payload(task_name, options.get("args", {}))
        plan = check_plan(Plan(task=task_name, args_json=payload, **fields))
        store = await self._engine.ready()
        record = await store.change_schedule(name, lambda record, now: schedule.add(record, name, plan, now))
        assert record is not None
        return record

    def add(self, name: str, task: str | Task[Any, Any], **options: Unpack[PlanOptions]) -> ScheduleRecord:
        """`aadd` for synchronous code."""
        return self._engine.wait(self.aadd(name, task, **options), "hf.schedules.aadd")

    async def achange(self, name: str, **options: Unpack[PlanOptions]) -> ScheduleRecord:
        """Set some of it, over what the code says. If that is when it fires, it counts from now."""
        refuse_unknown(options, PlanOptions, "hf.schedules.change()")
        if not options:
            raise InvalidOption("hf.schedules.change() needs something to change, such as cron='0 9 * * *'.")
        check_schedule_options(options)
        others: dict[str, Any] = {}
        if "args" in options:
            others["args_json"] = await self._payload((await self.aget(name)).plan.task, options["args"])

        def change(record: ScheduleRecord, now: datetime) -> ScheduleRecord:
            edits = check_schedule_options(options, record.plan.tz)
            return schedule.change(record, edits | others, now)

        return await self._steer(name, change)

    def change(self, name: str, **options: Unpack[PlanOptions]) -> ScheduleRecord:
        """`achange` for synchronous code."""
        return self._engine.wait(self.achange(name, **options), "hf.schedules.achange")

    async def apause(self, name: str) -> ScheduleRecord:
        """Let it make no more jobs. Ticks that pass meanwhile are not missed."""
        return await self._steer(name, schedule.pause)

    def pause(self, name: str) -> ScheduleRecord:
        """`apause` for synchronous code."""
        return self._engine.wait(self.apause(name), "hf.schedules.apause")

    async def aresume(self, name: str) -> ScheduleRecord:
        """Let it go on, with its first tick from now."""
        return await self._steer(name, schedule.resume)

    def resume(self, name: str) -> ScheduleRecord:
        """`aresume` for synchronous code."""
        return self._engine.wait(self.aresume(name), "hf.schedules.aresume")

    async def aremove(self, name: str) -> None:
        """Take it away. One of the code's stays away, whatever workers declare, until it is reset."""
        store = await self._engine.ready()
        await store.change_schedule(check_name(name, "name"), partial(_if_there, name, schedule.remove))

    def remove(self, name: str) -> None:
        """`aremove` for synchronous code."""
        self._engine.wait(self.aremove(name), "hf.schedules.aremove")

    async def areset(self, name: str) -> ScheduleRecord:
        """Back to what the code says: neither changed, nor paused, nor removed."""
        return await self._steer(name, schedule.reset)

    def reset(self, name: str) -> ScheduleRecord:
        """`areset` for synchronous code."""
        return self._engine.wait(self.areset(name), "hf.schedules.areset")

    async def arun(self, name: str) -> Job[Any]:
        """Enqueue a job of it now, whatever its ticks are, and whatever is unfinished."""
        record = await self.aget(name)
        if record.is_removed:
            raise ScheduleNotFound(f"Schedule {name!r} was removed. hf.schedules.reset() brings it back.")
        engine = self._engine
        new = extra_job(record, await _definition(engine, record.plan.task), engine.ids.make())
        (answer,) = await engine.enqueue([new], PLAIN.wait)
        task = engine.tasks.get(record.plan.task)
        return Job(engine, answer.id, task if isinstance(task, Task) else UNTYPED, answer.is_existing)

    def run(self, name: str) -> Job[Any]:
        """`arun` for synchronous code."""
        return self._engine.wait(self.arun(name), "hf.schedules.arun")

    async def anext(self, name: str, number: int = 5) -> list[datetime]:
        """When it fires next, in UTC; nothing if it is paused, removed or over."""
        return (await self.aget(name)).next_ticks(check_limit(number))

    def next(self, name: str, number: int = 5) -> list[datetime]:
        """`anext` for synchronous code."""
        return self._engine.wait(self.anext(name, number), "hf.schedules.anext")

    async def aticks(self, name: str, number: int = 20) -> list[TickRecord]:
        """Its last ticks that made a job, latest first, and what became of that. About a hundred are remembered."""
        await self.aget(name)
        return await self._engine.store.ticks(name, number)

    def ticks(self, name: str, number: int = 20) -> list[TickRecord]:
        """`aticks` for synchronous code."""
        return self._engine.wait(self.aticks(name, number), "hf.schedules.aticks")

    async def _steer(self, name: str, change: Callable[[ScheduleRecord, datetime], ScheduleRecord]) -> ScheduleRecord:
        store = await self._engine.ready()
        record = await store.change_schedule(check_name(name, "name"), partial(_if_there, name, change))
        assert record is not None
        return record

    async def _payload(self, task: str, args: object) -> str:
        """Arguments as the task takes them; UnknownTask if nobody has published it."""
        return (await prepare(self._engine, task, check_schedule_args(args), PLAIN)).new.args_json


def _if_there(
    name: str, change: Callable[[ScheduleRecord, datetime], Changed], record: ScheduleRecord | None, now: datetime
) -> Changed:
    if record is None:
        raise ScheduleNotFound(_unknown(name, []))
    return change(record, now)


def _unknown(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, 1)
    hint = f"Did you mean {near[0]!r}?" if near else "Look for its name among hf.schedules.all()."
    return f"There is no schedule {name!r}. {hint}"


async def _definition(engine: Engine, task: str) -> TaskDefinition:
    here = engine.tasks.get(task)
    return here.definition() if here is not None else (await engine.published(task)).definition
