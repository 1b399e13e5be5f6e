"""`holdfast db` on a SQLite file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.stores.sqlite.migrate import shipped_migrations
from tests.cli.conftest import Run

NOW = shipped_migrations()[-1].number
STEPS = [f"{migration.number:04} {migration.name}" for migration in shipped_migrations()]


@pytest.fixture
def path(run: Run, folder: Path) -> Path:
    """A file with all tables."""
    assert run("db", "migrate").status == 0
    return folder / "holdfast.db"


def _execute(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def _schema(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("select name, sql from sqlite_master order by 1").fetchall()


def test_a_reading_command_creates_nothing(run: Run, folder: Path) -> None:
    for command in (["check"], ["check", "--json"]):
        ran = run("db", *command)
        assert (ran.status, ran.out) == (4, "")
        assert "holdfast.db does not exist. Make it with `holdfast db migrate`" in ran.err
    ran = run("db", "migrate", "--dry-run")
    assert (ran.status, ran.out.splitlines()) == (
        0,
        ["would create the file", *(f"would apply {step}" for step in STEPS)],
    )
    assert list(folder.iterdir()) == []


def test_migrate_makes_the_tables_and_says_so(run: Run, folder: Path) -> None:
    ran = run("db", "migrate")
    assert (ran.status, ran.err) == (0, f"{folder}/holdfast.db\n")
    assert ran.out.splitlines() == ["created the file", *(f"applied {step}" for step in STEPS)]
    assert run("db", "check").out == f"✓ schema {NOW} is as it should be\n"
    assert run("db", "migrate").out == f"up to date: schema {NOW}\n"


def test_migrate_tells_programs_what_it_did(run: Run, folder: Path) -> None:
    expected = {
        "database": str(folder / "holdfast.db"),
        "is_dry_run": True,
        "schema_before": None,
        "schema": None,
        "needed": NOW,
        "migrations": [{"number": each.number, "name": each.name} for each in shipped_migrations()],
    }
    assert run("db", "migrate", "--dry-run", "--json").json == expected
    expected |= {"is_dry_run": False, "schema": NOW}
    assert run("db", "migrate", "--json").json == expected
    expected |= {"schema_before": NOW, "migrations": []}
    assert run("db", "migrate", "--json").json == expected


def test_the_script_makes_the_same_tables(run: Run, path: Path) -> None:
    ran = run("db", "sql", "--url", "sqlite:///any.db")
    assert not Path("any.db").exists()
    _execute(Path("by-hand.db"), ran.out)
    by_hand = [(name, "".join(sql.split()) if sql else sql) for name, sql in _schema(Path("by-hand.db"))]
    assert by_hand == [(name, "".join(sql.split()) if sql else sql) for name, sql in _schema(path)]
    assert run("db", "migrate", "--url", "sqlite:///by-hand.db").out == f"up to date: schema {NOW}\n"


@pytest.mark.parametrize(
    ("damage", "severity", "problem"),
    [
        ("drop table holdfast_tasks", "wrong", "The table holdfast_tasks is missing."),
        ("drop index {index}", "wrong", "The index {index} is missing."),
        ("alter table holdfast_jobs add column mine text", "wrong", "The table holdfast_jobs is not as it was."),
        ("create index mine on holdfast_jobs (id)", "warning", "The index mine is not Holdfast's."),
        ("create table holdfast_mine (id)", "warning", "The table holdfast_mine is not Holdfast's."),
        ("create table mine (id)", None, ""),
    ],
)
def test_check_finds_what_was_changed(run: Run, path: Path, damage: str, severity: str | None, problem: str) -> None:
    index = next(name for name, sql in _schema(path) if sql and sql.startswith("CREATE INDEX"))
    _execute(path, damage.format(index=index))
    ran = run("db", "check", "--json")
    found = [(finding["severity"], finding["problem"]) for finding in ran.json["findings"]]
    assert found == ([(severity, problem.format(index=index))] if severity else [])
    assert ran.json["is_good"] is (severity != "wrong")
    assert ran.status == (1 if severity == "wrong" else 0)


def test_check_finds_a_schema_of_another_number(run: Run, path: Path) -> None:
    _execute(path, "insert into holdfast_migrations (number, name) values (99, 'future')")
    ran = run("db", "check")
    assert ran.status == 1
    assert f"schema 99, and this version of Holdfast knows {NOW}" in ran.out
    for command in (["migrate"], ["migrate", "--dry-run"]):
        ran = run("db", *command)
        assert (ran.status, ran.out) == (1, "")
        assert f"schema 99, and this version of Holdfast knows {NOW}. Upgrade the holdfast package" in ran.err


def test_a_file_of_somebody_else_is_not_taken_for_ours(run: Run, folder: Path) -> None:
    _execute(folder / "other.db", "create table mine (id)")
    ran = run("db", "check", "--url", "sqlite:///other.db")
    assert ran.status == 1
    assert "✗ Holdfast's tables are not there.\n  → Make them: holdfast db migrate\n" in ran.out
    (folder / "text.db").write_text("not a database at all, but longer than a header would be" * 20)
    ran = run("db", "check", "--url", "sqlite:///text.db")
    assert ran.status == 4
    assert "not a SQLite database" in ran.err


def test_check_finds_another_journal_mode(run: Run, path: Path) -> None:
    _execute(path, "pragma journal_mode = delete")
    ran = run("db", "check")
    assert ran.status == 0
    assert "! The file is in journal mode delete" in ran.out


def test_check_finds_a_file_that_can_not_be_written(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda where, mode: where != path)  # root may write everywhere
    ran = run("db", "check")
    assert ran.status == 1
    assert f"✗ The file can't be written by this user: {path}" in ran.out


def test_check_finds_a_damaged_file(run: Run, path: Path) -> None:
    _execute(path, "pragma journal_mode = delete")
    with closing(sqlite3.connect(path)) as connection:
        ((page,),) = connection.execute("select rootpage from sqlite_master where name = 'holdfast_jobs'")
        ((size,),) = connection.execute("pragma page_size")
    with path.open("r+b") as file:
        file.seek(size * (page - 1))
        file.write(b"\xff" * size)
    ran = run("db", "check")
    assert ran.status == 1
    assert "✗ The file is damaged" in ran.out
    assert "restore a backup" in ran.out
