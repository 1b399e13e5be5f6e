"""No statement reads a whole table that grows, whatever SQLite knows of it when it makes its plans."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

from holdfast.stores.sqlite.migrate import shipped_migrations
from holdfast.stores.sqlite.statements import names, statement

GROWING: Final = "failures|gates|jobs|keys|lines|progress|ticks"
SCANS: Final = {
    "busy_queues": {"holdfast_open_lines"},  # one queue after the other
    "first_at_work": {"holdfast_active"},  # what runs
    "forgotten_lines": {"holdfast_active"},
    "limits": {"holdfast_parked_lines", "holdfast_named_gates"},  # for people, who see all of it
    "select_orphans": {"holdfast_active"},
    "select_unannounced": {"holdfast_unannounced"},  # a part of the index, from its beginning
    "unused_gates": {"holdfast_unused_gates"},
}
"""Which indexes are read from one end, as far as is needed."""
SOUGHT: Final = {
    "claim": ["holdfast_ready (queue=? AND "],
    "current_turn": ["holdfast_open_lines (queue=? AND priority=?)"],
    "due_gates": ["holdfast_timed_gates (next_at<?)"],
    "open_lines": ["holdfast_open_lines (queue=? AND priority=?)"],
    "open_unrated_lines": ["holdfast_open_lines (queue=? AND priority=?)"],
    "parked_lines": [
        "holdfast_parked_lines (parked_at=? AND queue=?)",
        "holdfast_parked_lines (parked_at=? AND queue>?)",
    ],
    "ready_in_lines": ["holdfast_in_line (line=?)"],
}
"""What is looked up where there may be millions, and by what."""


@pytest.fixture(scope="module", params=["empty", "analysed"])
def database(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for migration in shipped_migrations():
            connection.executescript(migration.sql)
        if request.param == "analysed":
            _fill(connection)
            connection.execute("analyze")
        yield connection


def _fill(connection: sqlite3.Connection) -> None:
    """Most of everything is in one queue, in one line, at one gate."""
    numbers = "with recursive n (i) as (select 1 union all select i + 1 from n where i < 3000)"
    connection.execute(
        f"{numbers} insert into holdfast_lines (seq, id, queue, priority, gates, state, parked_at, turn) "
        "select i, randomblob(16), 'q', 5, '[1]', i % 3, case i % 3 when 2 then 1 end, i from n"
    )


@pytest.mark.parametrize("name", names())
def test_no_statement_reads_a_table_that_grows(database: sqlite3.Connection, name: str) -> None:
    plan = _plan(database, name)
    known_as = re.findall(rf"holdfast_(?:{GROWING}) as (\w+)", statement(name))
    growing = "|".join([f"holdfast_({GROWING})", *known_as])
    scanned = {step.split()[-1] for step in plan if re.match(rf"SCAN ({growing})\b", step)}
    assert scanned <= SCANS.get(name, set()), plan
    for sought in SOUGHT.get(name, ()):
        assert any(sought in step for step in plan), plan


def _plan(database: sqlite3.Connection, name: str) -> list[str]:
    text = statement(name).replace("{jobs}", "select * from holdfast_jobs where id = ?")
    if text.startswith("pragma"):
        return []
    for number in range(60):
        try:
            rows = database.execute(f"explain query plan {text}", [None] * number).fetchall()
        except sqlite3.ProgrammingError:
            continue  # it takes more values
        return [row[3] for row in rows]
    raise AssertionError(f"{name} takes more values than any statement should")
