"""Calls of holdfast.enqueue: what is asked, and what the answer means. The same for every connection, ours or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec
from msgspec.structs import replace

from holdfast import keys
from holdfast.errors import HoldfastError, IdempotencyConflict, InvalidOption, StoreError, WrongDatabase
from holdfast.job import NewJob
from holdfast.store import Enqueued, Queue
from holdfast.stores.postgres import rows
from holdfast.stores.postgres.admission import Depth, Lack


class Options(msgspec.Struct, omit_defaults=True):
    """See holdfast.enqueue."""

    sizes: list[int] = []
    instance: UUID | None = None
    is_checked: bool = False
    is_plain: bool = False
    has_repeats: bool = True
    is_admitted: bool = False
    is_tight: bool = False
    is_locking: bool = False
    declared: dict[str, tuple[int, int]] = {}
    lines: list[rows.WokenLines] = []
    lock_timeout: int | None = None
    now: int | None = None


class _KeyTaken(msgspec.Struct, tag_field="because", tag="key"):
    task: str
    key: str
    existing: UUID


class _IdTaken(msgspec.Struct, tag_field="because", tag="id"):
    existing: UUID


class _NoRoom(Lack, tag_field="because", tag="room"):
    pass


class _Answer(msgspec.Struct):
    found: dict[int, UUID] = {}
    refused: dict[int, _KeyTaken | _IdTaken | _NoRoom] = {}
    queues: dict[str, Depth] = {}
    because: str | None = None


_answers = msgspec.json.Decoder(_Answer)
_LARGEST_KEY = 2_600


def is_plain(jobs: Sequence[NewJob]) -> bool:
    """None of them has a key, nor an id that might be there already."""
    return not [new for new in jobs if new.idempotency_key or new.unique_key or new.is_repeat]


def key_names(jobs: Sequence[NewJob]) -> set[keys.KeyName]:
    return {name for new in jobs for name in keys.keys_of(new)}


def check_keys(jobs: Sequence[NewJob]) -> None:
    """Refuse what the index of keys can't hold, before anything is sent: there it would end the transaction."""
    for name in key_names(jobs):
        if len(name.task.encode()) + len(name.key.encode()) > _LARGEST_KEY:
            raise InvalidOption(
                f"The key {name.key[:40]!r}… of task {name.task[:40]!r} is too long for PostgreSQL. Use at most "
                f"{_LARGEST_KEY:,} bytes for both names, or a hash of the key."
            )


def declared_bounds(queues: Mapping[str, Queue]) -> dict[str, tuple[int, int]]:
    return {queue.name: (queue.bound, queue.scheduled_bound) for queue in queues.values()}


@dataclass
class Outcome:
    """What became of each call: its answers, or why it was refused. And how full the queues are that were looked at."""

    calls: list[list[Enqueued] | HoldfastError]
    depths: dict[str, Depth] = field(default_factory=dict)
    is_told: bool = False
    """Other processes have been told of the jobs already."""


class Request:
    """Calls that go to the database together. Each is done whole or not at all."""

    def __init__(self, calls: Sequence[Sequence[NewJob]], *, is_replay: bool = False) -> None:
        """`is_replay`: an earlier try may have come through, so every id may be there already."""
        self._calls = [_without_twins(call) for call in calls]
        self._asked = [call for call in self._calls if isinstance(call, _Call)]
        self._is_replay = is_replay
        self._fresh = [new for call in self._asked for new in call.fresh]
        self.is_plain = not is_replay and is_plain(self._fresh)
        self.is_empty = not self._fresh

    def counts(self) -> dict[str, int]:
        """How many jobs for which queue."""
        return Counter(new.queue for new in self._fresh)

    def jobs(self) -> str:
        if self._is_replay:
            return rows.new_jobs(replace(new, is_repeat=True) for new in self._fresh)
        return rows.new_jobs(self._fresh)

    def lines(self) -> str | None:
        """The lines that the jobs stand in, if any."""
        listed = rows.woken_lines(self._fresh)
        return rows.as_json(listed) if listed else None

    def options(self, options: Options) -> str:
        options.lines = rows.woken_lines(self._fresh)
        options.is_checked = True  # all that is enqueued in Python was written, or read, as JSON
        options.is_plain = self.is_plain
        options.has_repeats = self._is_replay or any(new.is_repeat for new in self._fresh)
        options.sizes = [len(call.fresh) for call in self._asked] if len(self._asked) > 1 else []
        return rows.as_json(options)

    def read(self, text: str) -> Outcome:
        answer = _answers.decode(text)
        if answer.because is not None:
            raise WrongDatabase
        outcomes: list[list[Enqueued] | HoldfastError] = []
        number = position = 0
        for call in self._calls:
            if isinstance(call, HoldfastError):
                outcomes.append(call)
                continue
            refusal = answer.refused.get(number)
            outcomes.append(_refusal(refusal) if refusal is not None else self._answers(call, position, answer.found))
            number += 1
            position += len(call.fresh)
        return Outcome(outcomes, answer.queues)

    def admitted(self) -> Outcome:
        """When every job is new and there was room: none was found, and none refused."""
        return self.read("{}")

    def unasked(self) -> Outcome:
        """Without asking, where there is nothing to ask."""
        return Outcome([call if isinstance(call, HoldfastError) else [] for call in self._calls])

    def _answers(self, call: _Call, first: int, found: Mapping[int, UUID]) -> list[Enqueued]:
        if not found and len(call.ids) == len(call.fresh):
            return [Enqueued(id) for id in call.ids]  # nearly always
        answers: dict[UUID, Enqueued] = {}
        for index, new in enumerate(call.fresh):
            existing = found.get(first + index)
            # What a replay finds under its own id, the first try has put there.
            is_ours = existing is None or (self._is_replay and existing == new.id and not new.is_repeat)
            answers[new.id] = Enqueued(new.id) if is_ours else Enqueued(existing or new.id, is_existing=True)
        if len(call.ids) == len(call.fresh):
            return list(answers.values())
        listed: list[Enqueued] = []
        for id in call.ids:
            listed.append(answers[id])
            answers[id] = Enqueued(answers[id].id, is_existing=True)
        return listed


@dataclass(slots=True)
class _Call:
    """The jobs of one call without those whose id stands there twice."""

    ids: list[UUID]
    fresh: Sequence[NewJob]


def _without_twins(jobs: Sequence[NewJob]) -> _Call | HoldfastError:
    ids = [new.id for new in jobs]
    # Numbers, since a UUID computes its hash in Python.
    if len(ids) == 1 or len({id.int for id in ids}) == len(ids):
        return _Call(ids, jobs)
    fresh: dict[UUID, NewJob] = {}
    for new in jobs:
        first = fresh.setdefault(new.id, new)
        try:
            keys.same_job(new, first.task, first.args_json)
        except IdempotencyConflict as conflict:
            return conflict
    return _Call(ids, list(fresh.values()))


def _refusal(refused: _KeyTaken | _IdTaken | _NoRoom) -> HoldfastError:
    match refused:
        case _KeyTaken(task, key, existing):
            return keys.conflict_over_key(task, key, existing)
        case _IdTaken(existing):
            return keys.conflict_over_id(existing)
        case _NoRoom():
            return refused.refusal()
    raise StoreError(f"The database refused for a reason that this version does not know: {refused}.")
