"""What the server makes of the store's statements: which indexes it reads, and how much of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from holdfast.stores.postgres import connection as connection_module
from holdfast.stores.postgres.statements import names, records_statement, statement

SELECTIONS: Final = {
    "lock_active_of_worker",
    "lock_behind_breaker",
    "lock_by_id",
    "lock_expired",
    "lock_orphans",
    "select_by_id",
    "select_finished",
    "select_unannounced",
}
"""These stand inside records.sql."""
NOT_PREPARED: Final = {
    "records": "is the frame of the selections",
    "enqueue": "calls a function",
    "enqueue_in": "calls a function",
    "recognise": "asks the catalogs",
    "notify": "reads nothing",
}
_LARGE: Final = {"jobs", "keys", "failures", "progress", "lines", "gates", "wakes"}


@dataclass(frozen=True)
class Scan:
    """One way in which a plan comes to one of the tables that grow."""

    kind: str
    table: str
    index: str | None
    condition: str | None

    @property
    def is_whole(self) -> bool:
        """The table, or an index, may be read from end to end."""
        return self.condition is None and self.kind != "Bitmap Heap Scan"


@dataclass(frozen=True)
class Plan:
    """`buffers` are the pages that were looked at, if the statement was run."""

    scans: list[Scan]
    buffers: int


class Prepared:
    """The store's statements, prepared on one connection that has the settings of the store's own, or others."""

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        for name, value in (connection_module._SETTINGS if settings is None else settings).items():
            self._connection.execute("select set_config(%s, %s, false)", [name, value])
        for name in sorted(set(names()) - NOT_PREPARED.keys()):
            text = records_statement(name) if name in SELECTIONS else statement(name)
            self._connection.execute(f"prepare {name} as {text}".encode())

    def close(self) -> None:
        self._connection.close()

    def explain(self, name: str, values: Sequence[object], *, is_run: bool = False) -> Plan:
        """The plan of a statement. If it is run, nothing of it stays."""
        listed = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, values))) if values else sql.SQL("")
        return self._explain(sql.SQL("execute {}{}").format(sql.Identifier(name), listed), is_run)

    def explain_call(self, jobs: str, options: str) -> Plan:
        """What a call of holdfast.enqueue looks at, with all that it does inside."""
        return self._explain(sql.SQL("select holdfast.enqueue({}, {})").format(jobs, options), is_run=True)

    def _explain(self, query: sql.Composed, is_run: bool) -> Plan:
        options = sql.SQL("analyze, buffers, format json" if is_run else "format json")
        with self._connection.transaction(force_rollback=True):
            found = self._connection.execute(sql.SQL("explain ({}) {}").format(options, query)).fetchone()
        assert found is not None
        root = found[0][0]["Plan"]
        return Plan(list(_scans(root)), root.get("Shared Hit Blocks", 0) + root.get("Shared Read Blocks", 0))


def _scans(node: Mapping[str, Any], heap: str | None = None) -> Iterator[Scan]:
    kind = node["Node Type"]
    table = node.get("Relation Name", heap)
    if kind.endswith("Scan") and table in _LARGE:
        yield Scan(kind, table, node.get("Index Name"), node.get("Index Cond") or node.get("TID Cond"))
    for child in node.get("Plans", ()):
        yield from _scans(child, table if kind.startswith("Bitmap") else None)
