"""`$1` becomes `?1` where it stands for a value, and nowhere else. SQLite itself says what is a text."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import InvalidTransaction
from holdfast.stores.sqlite.placeholders import rewrite
from holdfast.transaction import check_statement

_LETTERS = "a$1?'\"`[]-/* \n;é"
_texts = st.text(_LETTERS, max_size=8)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


_comments = st.one_of(
    _texts.filter(lambda text: "*/" not in text and not text.endswith("*")).map(lambda text: f"/*{text}*/"),
    _texts.filter(lambda text: "\n" not in text).map(lambda text: f"--{text}\n"),
)
_columns = st.lists(
    st.one_of(
        _texts.map(lambda text: (_text(text), text)),
        st.integers(1, 12).map(lambda number: (f"${number}", number)),
        st.tuples(_comments, st.integers(1, 12)).map(lambda both: (f"{both[0]}${both[1]}", both[1])),
    ),
    min_size=1,
    max_size=6,
)


@given(_columns, st.lists(_texts.filter(bool), min_size=6, max_size=6))
@example([("'$1'", "$1"), ("$1", 1)], ["$1"] * 6)
def test_sqlite_gets_each_value_where_it_was_meant(columns: list[tuple[str, object]], names: list[str]) -> None:
    """Each column is a text, or the number of a value; names that need quotes are given to all of them."""
    listed = ", ".join(f"{sql} as {_name(name)}" for (sql, _), name in zip(columns, names, strict=False))
    sql = rewrite(f"select {listed}")
    used = max((value for _, value in columns if isinstance(value, int)), default=0)
    with closing(sqlite3.connect(":memory:")) as connection:
        cursor = connection.execute(sql, list(range(1, used + 1)))
        assert cursor.fetchone() == tuple(value for _, value in columns)
        assert [each[0] for each in cursor.description] == [name for _, name in zip(columns, names, strict=False)]


@given(st.text(_LETTERS, max_size=30))
def test_nothing_else_is_changed(sql: str) -> None:
    changed = rewrite(sql)
    assert len(changed) == len(sql)
    assert all(before == after or (before, after) == ("$", "?") for before, after in zip(sql, changed, strict=True))
    assert rewrite(changed) == changed


@pytest.mark.parametrize(
    "sql",
    [
        "select a$1",
        "select $1a",
        "select $0",
        "select $",
        "select $$1",
        "select `$1`",
        "select [$1]",
        "'$1",
        "/* $1",
        "x$1$2",
    ],
)
def test_a_dollar_that_stands_for_no_value_stays(sql: str) -> None:
    assert rewrite(sql) == sql


@pytest.mark.parametrize("piece", ["'", "/*", "--", "[", "$", "$1", "''", "/**/", ";", "$1'"])
def test_no_text_takes_long(piece: str) -> None:
    began = time.monotonic()
    rewrite(piece * 50_000 + "$")
    check_statement(piece * 50_000 + "$")
    assert time.monotonic() - began < 2


# ── what would end the transaction ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "sql",
    [
        "commit",
        "COMMIT WORK",
        "  end",
        "; commit",
        "begin immediate",
        "start  transaction",
        "abort",
        "rollback",
        "ROLLBACK AND CHAIN",
        "rollback work",
        "-- now\ncommit",
        "/* a */ /* b */\n rollback",
        "prepare transaction 'x'",
    ],
)
def test_statements_that_begin_or_end_a_transaction_are_refused(sql: str) -> None:
    with pytest.raises(InvalidTransaction, match="SAVEPOINT"):
        check_statement(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "insert into commits values (1)",
        "select 'commit'",
        "rollback to part",
        "rollback work to savepoint part",
        "rollback transaction to part",
        "savepoint part",
        "release part",
        "commitments",
        "with ended as (select 1) select * from ended",
        "-- commit\nselect 1",
        "prepare plan as select 1",
        "",
    ],
)
def test_other_statements_are_not(sql: str) -> None:
    check_statement(sql)


def test_a_statement_is_a_text() -> None:
    with pytest.raises(InvalidTransaction, match="as text"):
        check_statement(17)
