"""What a test finds in the store, compared with what it expects, and told so that it can be mended. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.job import JobRecord
from holdfast.recipe import plain_arguments
from holdfast.task import Task

_MOST_SHOWN: Final = 20
_LONGEST_SHOWN: Final = 100


def jobs_of(task: Task[Any, Any], records: Sequence[JobRecord]) -> list[JobRecord]:
    """Those of a task, under any of its names."""
    names = {task.name, *task.aliases}
    return [record for record in records if record.task in names]


def same_calls(task: Task[Any, Any], payload: str, records: Sequence[JobRecord]) -> list[JobRecord]:
    """Those of a task that were enqueued with these arguments. A default that is written out is still the default."""
    wanted = _complete(task, payload)
    return [record for record in jobs_of(task, records) if _complete(task, record.args_json) == wanted]


def not_enqueued(task: Task[Any, Any], payload: str, records: Sequence[JobRecord]) -> str:
    """What was expected, and what is there instead."""
    expected = f"{_shown_call(task, payload)} was not enqueued."
    others = jobs_of(task, records)
    if others:
        return f"{expected} Of {task.name}, there {_are(len(others))}:\n{_listed(task, others)}"
    return f"{expected} {_summary(records)}"


def enqueued_after_all(task: Task[Any, Any], records: Sequence[JobRecord]) -> str:
    found = jobs_of(task, records)
    return f"{task.name} was not to be enqueued, and there {_are(len(found))}:\n{_listed(task, found)}"


def something_enqueued(records: Sequence[JobRecord]) -> str:
    return f"Nothing was to be enqueued. {_summary(records)}"


def _complete(task: Task[Any, Any], payload: str) -> dict[str, Any]:
    return {**task.signature.defaults(), **plain_arguments(payload)}


def _are(count: int) -> str:
    return "is 1 job" if count == 1 else f"are {count:,} jobs"


def _summary(records: Sequence[JobRecord]) -> str:
    counts = Counter(record.task for record in records)
    if not counts:
        return "Nothing was enqueued at all."
    shown = [f"{name} x {count:,}" if count > 1 else name for name, count in counts.most_common(_MOST_SHOWN)]
    more = f" and {len(counts) - _MOST_SHOWN} other tasks" if len(counts) > _MOST_SHOWN else ""
    return f"Enqueued: {', '.join(shown)}{more}."


def _listed(task: Task[Any, Any], records: Sequence[JobRecord]) -> str:
    lines = [
        f"    {_shown_call(task, record.args_json)}  {record.state}, queue {record.queue}"
        for record in records[-_MOST_SHOWN:]
    ]
    if len(records) > _MOST_SHOWN:
        lines.insert(0, f"    … {len(records) - _MOST_SHOWN:,} before these")
    return "\n".join(lines)


def _shown_call(task: Task[Any, Any], payload: str) -> str:
    """As it would be written, without what the task hides."""
    arguments = plain_arguments(payload)
    in_order = dict.fromkeys(name for name in (*task.signature.parameters, *arguments) if name in arguments)
    shown = [f"{name}={_shown_value(task, name, arguments[name])}" for name in in_order]
    return f"{task.name}({', '.join(shown)})"


def _shown_value(task: Task[Any, Any], name: str, value: Any) -> str:
    return "…" if name in task.redact else _cut(msgspec.json.encode(value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"
