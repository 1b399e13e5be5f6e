"""SQL text is cut where its statements end, and nowhere else."""

from __future__ import annotations

import pytest

from holdfast.stores.postgres.cutting import cut
from holdfast.stores.postgres.migrate import shipped_migrations


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        ("", []),
        (" ;; -- only this; \n /* and; this */ ; ", []),
        ("select 1; select 2", ["select 1", "select 2"]),
        ("select 1;\n-- about; two\nselect 2;\n", ["select 1", "select 2"]),
        ("select 1 -- one; more\n, 2; select 3", ["select 1 -- one; more\n, 2", "select 3"]),
        ("/* a; */ select 1 /* b; */ + 2 /* c */; select 3", ["select 1 /* b; */ + 2 /* c */", "select 3"]),
        ("/* a /* nested; */ ; */ select 1; select 2", ["select 1", "select 2"]),
        ("select ';', 'it''s; ', 2; select 3", ["select ';', 'it''s; ', 2", "select 3"]),
        (r"select e'\';', E'\\'; select 2", [r"select e'\';', E'\\'", "select 2"]),
        (r"select '\'; select 2", [r"select '\'", "select 2"]),
        ('select 1 as "a;""b"; select 2', ['select 1 as "a;""b"', "select 2"]),
        ("do $$ begin; end $$; select 2", ["do $$ begin; end $$", "select 2"]),
        ("do $a$ $$ ; $b$ ; $a$; select $1", ["do $a$ $$ ; $b$ ; $a$", "select $1"]),
        ("select 'a -- b'; select 2", ["select 'a -- b'", "select 2"]),
        ("select '/*'; select '*/'", ["select '/*'", "select '*/'"]),
        ("select $$'$$; select $$'$$", ["select $$'$$", "select $$'$$"]),
        ("select a$$b; select c$$d", ["select a$$b", "select c$$d"]),
    ],
)
def test_a_semicolon_in_a_text_a_comment_or_a_body_ends_nothing(sql: str, statements: list[str]) -> None:
    assert cut(sql) == statements


def test_every_statement_of_the_migrations_begins_as_one() -> None:
    for migration in shipped_migrations():
        for statement in migration.statements():
            assert statement.split()[0].lower() in ("create", "insert", "alter", "drop", "update"), statement
            assert statement.count("$$") % 2 == 0
