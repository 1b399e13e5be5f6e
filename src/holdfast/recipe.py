"""Recipe: how a call of a task becomes a job. The same for a task whose code is here and for one that is published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from holdfast.codec import fingerprint
from holdfast.gates import LineRule
from holdfast.job import Delivery, NewJob
from holdfast.limits import LimitRecipe
from holdfast.options import PLAIN, JobSettings, TaskSettings
from holdfast.store import TaskDefinition
from holdfast.template import Template


@dataclass(frozen=True)
class Recipe:
    """What a task says of its jobs. `defaults` are those of its parameters, which its templates may name."""

    task: str
    queue: str
    priority: int
    max_attempts: int
    delivery: Delivery
    expires: timedelta | None
    idempotency_key: Template | None
    unique_key: Template | None
    unique_window: timedelta | None
    limits: LimitRecipe
    defaults: Callable[[], Mapping[str, Any]]

    def make(self, payload: str, given: JobSettings, id: UUID) -> NewJob:
        """The job of a call with these arguments; what is given for the single job comes before what the task says."""
        key, unique_key, line = self._keys(payload, given)
        if given is PLAIN and self.expires is None:
            # Mostly nothing is given, and names of fields take long to look up.
            return NewJob(
                id,
                self.task,
                self.queue,
                payload,
                self.priority,
                self.max_attempts,
                self.delivery,
                idempotency_key=key,
                fingerprint=None if key is None else fingerprint(payload),
                unique_key=unique_key,
                unique_window=self.unique_window,
                line=line,
            )
        expires_in = given.expires_in
        if expires_in is None and given.expires_at is None:
            expires_in = self.expires
        return NewJob(
            id=id,
            task=self.task,
            queue=given.queue or self.queue,
            args_json=payload,
            priority=self.priority if given.priority is None else given.priority,
            max_attempts=self.max_attempts,
            delivery=self.delivery,
            delay=given.delay,
            at=given.at,
            expires_in=expires_in,
            expires_at=given.expires_at,
            idempotency_key=key,
            fingerprint=None if key is None else fingerprint(payload),
            unique_key=unique_key,
            unique_window=self.unique_window,
            line=line,
            tags=given.tags,
            context_json=given.context,
            is_repeat=given.id is not None,
        )

    def line(self, payload: str) -> LineRule | None:
        """The limits that a job with these arguments is under."""
        return self.limits.line(plain_arguments(payload), self.defaults()) if self.limits else None

    def _keys(self, payload: str, given: JobSettings) -> tuple[str | None, str | None, LineRule | None]:
        """What the arguments tell: its idempotency key, its unique key, and the limits that it is under."""
        key, unique_key, line = given.idempotency_key, None, None
        template = self.idempotency_key if key is None else None
        if template is not None or self.unique_key is not None or self.limits:
            arguments, defaults = plain_arguments(payload), self.defaults()
            if template is not None:
                key = template.render(arguments, defaults)
            if self.unique_key is not None:
                unique_key = self.unique_key.render(arguments, defaults)
            if self.limits:
                line = self.limits.line(arguments, defaults)
        return key, unique_key, line


def recipe_of(settings: TaskSettings, defaults: Callable[[], Mapping[str, Any]]) -> Recipe:
    """The recipe of a task whose code is here."""
    unique = settings.unique
    return Recipe(
        task=settings.name,
        queue=settings.queue,
        priority=settings.priority,
        max_attempts=settings.max_attempts,
        delivery=settings.delivery,
        expires=settings.expires,
        idempotency_key=settings.idempotency_key,
        unique_key=unique.key if unique else None,
        unique_window=unique.window if unique else None,
        limits=LimitRecipe(settings.limits.definitions(settings.name, settings.delivery)),
        defaults=defaults,
    )


def published_recipe(definition: TaskDefinition) -> Recipe:
    """The recipe of a task that somebody else has published."""
    properties: dict[str, dict[str, Any]] = definition.schema.get("properties", {})
    defaults = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    return Recipe(
        task=definition.name,
        queue=definition.queue,
        priority=definition.priority,
        max_attempts=definition.max_attempts,
        delivery=Delivery(definition.delivery),
        expires=_span(definition.expires),
        idempotency_key=None if definition.idempotency_key is None else Template(definition.idempotency_key),
        unique_key=None if definition.unique is None else Template(definition.unique),
        unique_window=_span(definition.unique_window),
        limits=LimitRecipe(definition.limits),
        defaults=lambda: defaults,
    )


_arguments = msgspec.json.Decoder(dict[str, Any])


def plain_arguments(payload: str) -> dict[str, Any]:
    """Arguments as plain data."""
    return _arguments.decode(payload)


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
