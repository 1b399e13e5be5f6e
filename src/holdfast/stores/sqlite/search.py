"""Filters as SQL over holdfast_jobs. Values are always bound; names come from this file only."""

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


class Search:
    """The conditions of a filter, and the values they are bound to."""

    def __init__(self, filter: Filter, cursor: UUID | None = None) -> None:
        check_filter(filter)
        self._conditions: list[str] = []
        self.values: list[Any] = []
        if filter.states:
            states = (_STATES[state] for state in JobState if state in filter.states)
            self._require(f"({' or '.join(states)})")
        if cursor is not None:
            self._require("id < ?", cursor.bytes)
        if filter.queue is not None:
            self._require("queue = ?", filter.queue)
        if filter.task is not None:
            self._require("task = ?", filter.task)
        if filter.error_type is not None:
            self._require("error_type = ?", filter.error_type)
        if filter.created_from is not None:
            self._require("created_at >= ?", to_microseconds(filter.created_from))
        if filter.created_before is not None:
            self._require("created_at < ?", to_microseconds(filter.created_before))
        if filter.finished_before is not None:
            self._require("finished_at < ?", to_microseconds(filter.finished_before))
        for tag in filter.tags:
            self._require("exists (select 1 from json_each(tags) where value = ?)", tag)
        for name, wanted in filter.args.items():
            self._require_argument(name, wanted)

    def _require(self, condition: str, *values: Any) -> None:
        self._conditions.append(condition)
        self.values.extend(values)

    def _require_argument(self, name: str, wanted: object) -> None:
        """1, true and "1" are three different things in JSON, and must be here too. What is no JSON matches nothing."""
        path = "$" + "".join(f".{step}" for step in path_of(name))
        match wanted:
            case None:
                self._require_of_json("json_type(args, ?) = 'null'", path)
            case bool():
                self._require_of_json("json_type(args, ?) = ?", path, "true" if wanted else "false")
            case str():
                self._require_of_json("json_type(args, ?) = 'text' and json_extract(args, ?) = ?", path, path, wanted)
            case _:
                self._require_of_json(
                    "json_type(args, ?) in ('integer', 'real') and json_extract(args, ?) = ?", path, path, wanted
                )

    def _require_of_json(self, condition: str, *values: Any) -> None:
        self._require(f"case when json_valid(args) then {condition} end", *values)

    @property
    def where(self) -> str:
        return f"where {' and '.join(self._conditions)}" if self._conditions else ""

    def page(self) -> str:
        """The selection of a page; one more value, the limit, is bound last."""
        return f"select * from holdfast_jobs {self.where} order by id desc limit ?"  # noqa: S608

    def count(self) -> str:
        return f"select count(*) from holdfast_jobs {self.where}"  # noqa: S608
