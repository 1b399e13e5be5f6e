"""What a filter means, for one record. The stores that filter in SQL must agree with this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidOption
from holdfast.job import JobRecord
from holdfast.store import Filter

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_MISSING = object()


def passes(job: JobRecord, filter: Filter) -> bool:
    return (
        (not filter.states or job.state in filter.states)
        and (filter.queue is None or job.queue == filter.queue)
        and (filter.task is None or job.task == filter.task)
        and set(filter.tags) <= set(job.tags)
        and (filter.created_from is None or job.created_at >= filter.created_from)
        and (filter.created_before is None or job.created_at < filter.created_before)
        and (
            filter.finished_before is None or (job.finished_at is not None and job.finished_at < filter.finished_before)
        )
        and (filter.error_type is None or job.error_type == filter.error_type)
        and (not filter.args or _args_match(_read(job), filter.args))
    )


def path_of(name: str) -> list[str]:
    """The steps of a dotted argument name; InvalidOption if it is not one."""
    if not isinstance(name, str) or not _DOTTED.fullmatch(name) or len(name) > 200:
        raise InvalidOption(f"{name!r} is not an argument's name. Write args.name or args.name.inner.")
    return name.split(".")


def check_filter(filter: Filter) -> None:
    """Refuse arguments that can't be compared: their names, or the values they are to have."""
    for name, value in filter.args.items():
        path_of(name)
        _check_wanted(name, value)


def _check_wanted(name: str, value: object) -> None:
    """Only plain values, and numbers only as far as every database can hold them."""
    if not isinstance(value, str | int | float | bool | None):
        raise InvalidOption(f"args.{name} can be compared with text, a number, true, false or null.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidOption(f"args.{name} can be compared with numbers of 64 bits only.")


def _read(job: JobRecord) -> Mapping[str, Any]:
    """Arguments that can't be read match nothing."""
    try:
        return job.args
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}


def _args_match(args: Mapping[str, Any], wanted: Mapping[str, object]) -> bool:
    for name, value in wanted.items():
        found: Any = args
        for step in path_of(name):
            found = found.get(step, _MISSING) if isinstance(found, Mapping) else _MISSING
        if found is _MISSING or isinstance(found, bool) != isinstance(value, bool) or found != value:
            return False
    return True
