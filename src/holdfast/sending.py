"""Enqueuing by name, from a service that does not have the task's code: its published definition says how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.codec import check_payload
from holdfast.engine import Engine
from holdfast.handle import UNTYPED, Job, ResultReader
from holdfast.job import NewJob
from holdfast.options import JobSettings
from holdfast.recipe import published_recipe
from holdfast.schema import check_schema
from holdfast.store import Enqueued, check_name
from holdfast.task import Prepared, Task


async def prepare(engine: Engine, name: str, args: Mapping[str, Any], settings: JobSettings) -> Sending:
    """The job that a task becomes which is sent by name; UnknownTask if nobody has published it.

    Its arguments are checked against its signature, if it is known here, or else against its published schema.
    """
    check_name(name, "the task's name")
    id = settings.id or engine.ids.make()
    task = engine.tasks.get(name)
    if isinstance(task, Task):
        payload = check_payload(args, task=task.name)
        await task.check_arguments(engine, task.name, payload)
        return Sending(Prepared(task, settings).new_job(payload, id), task)
    definition = (await engine.published(name)).definition
    payload = check_payload(args, task=definition.name)
    check_schema(definition.name, definition.schema, payload)
    return Sending(published_recipe(definition).make(payload, settings, id), UNTYPED)


@dataclass(frozen=True)
class Sending:
    """A job that is ready to be sent, and what its handle must know."""

    new: NewJob
    reader: ResultReader[Any]

    def handle(self, engine: Engine, answers: Sequence[Enqueued]) -> Job[Any]:
        (answer,) = answers
        return Job(engine, answer.id, self.reader, answer.is_existing)
