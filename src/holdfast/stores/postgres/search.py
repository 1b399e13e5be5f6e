"""Filters as SQL over holdfast.jobs. Values are always bound; names come from this file only."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast.job import JobState
from holdfast.moment import to_microseconds
from holdfast.store import Filter
from holdfast.stores.filters import check_filter, path_of

_STATES = {
    JobState.PENDING: "(stage < 3 and attempt = 0)",
    JobState.RETRYING: "(stage < 3 and attempt > 0)",
    JobState.ACTIVE: "stage = 3",
    JobState.COMPLETED: "stage = 4",
    JobState.CANCELLED: "stage = 5",
    JobState.DEAD: "stage = 6",
}


_NOTHING = "\ue000\ue001"
"""What holdfast.readable puts for the character 0."""


class Search:
    """The conditions of a filter, and the values they are bound to.

    `is_wary`: pass by arguments that can't be read. That takes longer, so it is for those who have met some.
    """

    def __init__(self, filter: Filter, cursor: UUID | None = None, *, is_wary: bool = False) -> None:
        check_filter(filter)
        self._conditions: list[str] = []
        self.values: list[Any] = []
        if filter.states:
            states = (_STATES[state] for state in JobState if state in filter.states)
            self._conditions.append(f"({' or '.join(states)})")
        if cursor is not None:
            self._require("id < {}", cursor)
        if filter.queue is not None:
            self._require("queue = {}", filter.queue)
        if filter.task is not None:
            self._require("task = {}", filter.task)
        if filter.error_type is not None:
            self._require("error_type = {}", filter.error_type)
        if filter.created_from is not None:
            self._require("created_at >= {}", to_microseconds(filter.created_from))
        if filter.created_before is not None:
            self._require("created_at < {}", to_microseconds(filter.created_before))
        if filter.finished_before is not None:
            self._require("finished_at < {}", to_microseconds(filter.finished_before))
        if filter.tags:
            self._require("tags @> {}::text[]", list(filter.tags))
        for name, wanted in filter.args.items():
            if is_wary:
                self._require_argument_warily(name, wanted)
            else:
                self._require_argument(name, wanted)

    def _require(self, condition: str, *values: Any) -> None:
        self._conditions.append(condition.format(*(self._bind(value) for value in values)))

    def _bind(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    def _require_argument(self, name: str, wanted: object) -> None:
        """1, true and "1" are three different things in JSON, and must be here too."""
        found = f"(holdfast.readable(args) #> {self._bind(path_of(name))}::text[])"
        match wanted:
            case None:
                self._conditions.append(f"json_typeof{found} = 'null'")
            case bool():
                self._conditions.append(f"json_typeof{found} = 'boolean' and {found}::text = '{str(wanted).lower()}'")
            case str():
                text = self._bind(wanted.replace("\0", _NOTHING))
                self._conditions.append(f"json_typeof{found} = 'string' and {found} #>> '{{}}' = {text}")
            case _:
                number = f"case json_typeof{found} when 'number' then {found}::text::numeric end"
                self._conditions.append(f"{number} = {self._bind(repr(wanted))}::text::numeric")

    def _require_argument_warily(self, name: str, wanted: object) -> None:
        match wanted:
            case None:
                kind, text = "null", None
            case bool():
                kind, text = "boolean", str(wanted).lower()
            case str():
                kind, text = "string", wanted.replace("\0", _NOTHING)
            case _:
                kind, text = "number", repr(wanted)
        condition = "holdfast.has_argument(args, {}::text[], {}::text, {}::text)"
        self._require(condition, path_of(name), kind, text)

    @property
    def where(self) -> str:
        return f"where {' and '.join(self._conditions)}" if self._conditions else ""

    def page(self, limit: int) -> str:
        """The selection of a page."""
        return f"select * from holdfast.jobs {self.where} order by id desc limit {self._bind(limit)}"  # noqa: S608

    def count(self) -> str:
        return f"select count(*) from holdfast.jobs {self.where}"  # noqa: S608
