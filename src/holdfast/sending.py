"""Enqueuing by name, from a service that does not have the task's code: its published definition says how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from holdfast.codec import check_payload, fingerprint
from holdfast.engine import Engine
from holdfast.handle import UNTYPED, Job, ResultReader, plain_arguments
from holdfast.job import Delivery, NewJob
from holdfast.options import JobSettings
from holdfast.schema import check_schema
from holdfast.store import Enqueued, TaskDefinition, check_name
from holdfast.task import Prepared, Task
from holdfast.template import Template


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
    return Sending(_new_job(definition, payload, settings, id), UNTYPED)


@dataclass(frozen=True)
class Sending:
    """A job that is ready to be sent, and what its handle must know."""

    new: NewJob
    reader: ResultReader[Any]

    def handle(self, engine: Engine, answers: Sequence[Enqueued]) -> Job[Any]:
        (answer,) = answers
        return Job(engine, answer.id, self.reader, answer.is_existing)


def _new_job(definition: TaskDefinition, payload: str, given: JobSettings, id: UUID) -> NewJob:
    arguments, defaults = plain_arguments(payload), _defaults(definition)
    key = given.idempotency_key
    if key is None and definition.idempotency_key is not None:
        key = Template(definition.idempotency_key).render(arguments, defaults)
    unique_key = None if definition.unique is None else Template(definition.unique).render(arguments, defaults)
    expires_in = given.expires_in
    if expires_in is None and given.expires_at is None:
        expires_in = _span(definition.expires)
    return NewJob(
        id=id,
        task=definition.name,
        queue=given.queue or definition.queue,
        args_json=payload,
        priority=definition.priority if given.priority is None else given.priority,
        max_attempts=definition.max_attempts,
        delivery=Delivery(definition.delivery),
        delay=given.delay,
        at=given.at,
        expires_in=expires_in,
        expires_at=given.expires_at,
        idempotency_key=key,
        fingerprint=None if key is None else fingerprint(payload),
        unique_key=unique_key,
        unique_window=_span(definition.unique_window),
        tags=given.tags,
        context_json=given.context,
        is_repeat=given.id is not None,
    )


def _defaults(definition: TaskDefinition) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = definition.schema.get("properties", {})
    return {name: schema["default"] for name, schema in properties.items() if "default" in schema}


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
