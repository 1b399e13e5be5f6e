"""`holdfast db` on a PostgreSQL database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from holdfast.stores.postgres.catalog import expected
from holdfast.stores.postgres.migrate import shipped_migrations
from tests.cli.conftest import Ran, Run
from tests.servers.databases import Databases
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer

NOW = shipped_migrations()[-1].number
STEPS = [f"{migration.number:04} {migration.name}" for migration in shipped_migrations()]


@pytest.fixture
def url(migrated_database: str) -> str:
    """A database with all tables."""
    return migrated_database


@pytest.fixture
def role(postgres: Databases) -> Iterator[str]:
    """A role that may log in, and nothing else. A database where it is given rights must be gone before it."""
    name = f"holdfast role {uuid4().hex[:8]}"  # its name must be quoted
    postgres.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
    yield name
    postgres.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def _execute(url: str, statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statements)
        return cursor.fetchall() if cursor.description else []


def _findings(ran: Ran) -> list[dict[str, str]]:
    """What was found, but for the settings of the server that tests share."""
    return [
        finding
        for finding in ran.json["findings"]
        if not finding["problem"].startswith(("fsync is off", "full_page_writes is off"))
    ]


# ── making and upgrading ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reading_command_makes_no_tables(run: Run, postgres_database: str) -> None:
    ran = run("db", "check", "--url", postgres_database)
    assert ran.status == 1
    assert "✗ Holdfast's tables are not there.\n  → Make them: holdfast db migrate\n" in ran.out
    ran = run("db", "migrate", "--dry-run", "--url", postgres_database)
    assert (ran.status, ran.out) == (0, "".join(f"would apply {step}\n" for step in STEPS))
    assert _execute(postgres_database, "select to_regnamespace('holdfast')") == [(None,)]


def test_migrate_makes_the_tables_and_says_so(run: Run, postgres_database: str) -> None:
    ran = run("db", "migrate", "--url", postgres_database)
    applied = "".join(f"applied {step}\n" for step in STEPS)
    assert (ran.status, ran.out, ran.err) == (0, applied, f"{postgres_database}\n")
    ran = run("db", "migrate", "--url", postgres_database)
    assert (ran.status, ran.out) == (0, f"up to date: schema {NOW}\n")
    assert run("db", "migrate", "--url", postgres_database, "--json").json == {
        "database": postgres_database,
        "is_dry_run": False,
        "schema_before": NOW,
        "schema": NOW,
        "needed": NOW,
        "migrations": [],
    }


def test_a_database_that_is_not_there_is_unreachable(run: Run, postgres: Databases) -> None:
    for command in (["check"], ["migrate"], ["migrate", "--dry-run"]):
        ran = run("db", *command, "--url", postgres.url("holdfast_nowhere"))
        assert (ran.status, ran.out) == (4, "")
        assert 'database "holdfast_nowhere" does not exist. Create it, or correct the URL.' in ran.err


def test_a_newer_schema_is_refused(run: Run, url: str) -> None:
    _execute(url, "insert into holdfast.migrations (number, name) values (99, 'future')")
    for command in (["migrate"], ["migrate", "--dry-run"]):
        ran = run("db", *command, "--url", url)
        assert (ran.status, ran.out) == (1, "")
        assert f"schema 99, and this version of Holdfast knows {NOW}. Upgrade the holdfast package" in ran.err
    assert [finding["problem"] for finding in _findings(run("db", "check", "--json", "--url", url))] == [
        f"The database has schema 99, and this version of Holdfast knows {NOW}."
    ]


def test_a_role_that_may_not_make_tables_says_who_should(
    run: Run, postgres: Databases, role: str, postgres_database: str
) -> None:
    ran = run("db", "migrate", "--url", postgres.url(postgres_database.rpartition("/")[2], user=role))
    assert (ran.status, ran.out) == (1, "")
    assert "Run `holdfast db migrate` once with a role that may." in ran.err


def test_the_script_is_printed_without_connecting(run: Run) -> None:
    whole = run("db", "sql")
    assert whole.status == 0
    assert whole.out.startswith(f"-- Holdfast's tables, from schema 0 to schema {NOW}.\n")
    assert "create function holdfast.enqueue(" in whole.out
    assert run("db", "sql", "--url", "postgresql://user@127.0.0.1:1/nowhere").out == whole.out
    assert run("db", "sql", "--json").json == {"from": 0, "schema": NOW, "sql": whole.out}
    assert run("db", "sql", "--from", str(NOW)).out == f"-- Holdfast's tables: nothing comes after schema {NOW}.\n"
    beyond = run("db", "sql", "--from", str(NOW + 1))
    assert (beyond.status, beyond.out) == (2, "")
    assert f"knows schemas up to {NOW}" in beyond.err


def test_the_printed_script_is_what_check_expects(run: Run, postgres_database: str) -> None:
    _execute(postgres_database, run("db", "sql").out)
    assert _findings(run("db", "check", "--json", "--url", postgres_database)) == []


# ── checking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_healthy_database_is_called_so(run: Run, synced_postgres: PostgresServer) -> None:
    url = synced_postgres.create_database()
    try:
        run("db", "migrate", "--url", url)
        ran = run("db", "check", "--url", url)
        assert (ran.status, ran.out) == (0, f"✓ schema {NOW} is as it should be\n")
        assert ran.err.startswith(f"{url}, PostgreSQL ")
    finally:
        synced_postgres.drop_database(url)


_OTHER_FUNCTION = """
    create or replace function holdfast.now() returns bigint language sql volatile parallel safe as 'select 1::bigint'
"""
_DAMAGES = {
    "drop index holdfast.jobs_ready": "The index jobs_ready of jobs is missing.",
    "drop index holdfast.jobs_ready; create index jobs_ready on holdfast.jobs (queue)": (
        "The index jobs_ready of jobs is another one: CREATE INDEX jobs_ready ON holdfast.jobs USING btree (queue)."
    ),
    "alter table holdfast.jobs drop column context": "The column context of jobs is missing.",
    "alter table holdfast.jobs alter context set not null": (
        "The column context of jobs is not as it was: text not null, instead of text."
    ),
    "alter table holdfast.jobs alter attempt drop default": (
        "The column attempt of jobs is not as it was: integer not null, instead of integer not null default 0."
    ),
    "alter table holdfast.workers alter pid type bigint": (
        "The column pid of workers is not as it was: bigint not null, instead of integer not null."
    ),
    "alter table holdfast.keys drop constraint keys_pkey": "The constraint keys_pkey of keys is missing.",
    "alter table holdfast.jobs set unlogged": (
        "The table jobs is not as it was: table, unlogged, instead of table, logged."
    ),
    "alter table holdfast.jobs enable row level security": (
        "The table jobs is not as it was: table, logged, row security, instead of table, logged."
    ),
    "drop table holdfast.tasks": "The table tasks is missing.",
    "drop sequence holdfast.places": "The sequence places is missing.",
    "drop function holdfast.enqueue": "The function enqueue(text, text) is missing.",
    _OTHER_FUNCTION: "The function now() is not the one that Holdfast made.",
    "alter function holdfast.enqueue reset all": (
        "The function enqueue(text, text) is not the one that Holdfast made."
    ),
    "alter table holdfast.jobs add column mine text not null": (
        "The column mine of jobs is not Holdfast's, and must be filled: no row can be inserted."
    ),
    "delete from holdfast.instance": (
        "The table instance has 0 rows instead of one: nobody can tell which database this is."
    ),
    "insert into holdfast.instance default values": (
        "The table instance has 2 rows instead of one: nobody can tell which database this is."
    ),
}
_EXTRAS = {
    "alter table holdfast.jobs add column mine text": "The column mine of jobs is not Holdfast's.",
    "create table holdfast.mine (id int primary key)": "The table mine is not Holdfast's.",
    "create view holdfast.mine as select id from holdfast.jobs": "The table mine is not Holdfast's.",
    "create index mine on holdfast.jobs (task)": "The index mine of jobs is not Holdfast's.",
    "alter table holdfast.jobs add constraint mine check (priority < 99)": (
        "The constraint mine of jobs is not Holdfast's."
    ),
    "create function holdfast.mine() returns int language sql as 'select 1'": "The function mine() is not Holdfast's.",
    """create trigger mine before delete on holdfast.jobs
       for each row execute function suppress_redundant_updates_trigger()""": (
        "The trigger mine of jobs is not Holdfast's."
    ),
}


@pytest.mark.parametrize(("damage", "problem"), _DAMAGES.items(), ids=[text[:40] for text in _DAMAGES.values()])
def test_what_is_wrong_is_found_and_the_advice_mends_it(run: Run, url: str, damage: str, problem: str) -> None:
    _execute(url, damage)
    ran = run("db", "check", "--json", "--url", url)
    (finding,) = _findings(ran)
    assert (finding["severity"], finding["problem"]) == ("wrong", problem)
    assert (ran.status, ran.json["is_good"]) == (1, False)
    assert problem in run("db", "check", "--url", url).out
    _, separator, remedy = finding["advice"].partition("Run: ")
    if separator:
        for statement in remedy.rstrip(";").split("; "):
            _execute(url, statement)
        assert _findings(run("db", "check", "--json", "--url", url)) == []


@pytest.mark.parametrize(("addition", "problem"), _EXTRAS.items(), ids=_EXTRAS.values())
def test_what_is_not_ours_is_a_warning(run: Run, url: str, addition: str, problem: str) -> None:
    _execute(url, addition)
    (finding,) = _findings(run("db", "check", "--json", "--url", url))
    assert (finding["severity"], finding["problem"]) == ("warning", problem)


@pytest.mark.parametrize("name", ["jobs_ready", "mine"])
def test_an_index_that_was_left_unfinished_is_found_and_mended(run: Run, url: str, name: str) -> None:
    definition = next((thing.definition for thing in expected().things if thing.name == name), None)
    text = definition or f"CREATE INDEX {name} ON holdfast.jobs (task)"
    _execute(url, f"drop index if exists holdfast.{name}")
    with (
        psycopg.connect(url) as reader,
        psycopg.connect(url, autocommit=True) as builder,
        ThreadPoolExecutor(1) as executor,
    ):
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select")
        building = executor.submit(builder.execute, text.replace("INDEX", "INDEX CONCURRENTLY", 1))
        while not _execute(
            url, "select 1 from pg_stat_activity where wait_event = 'virtualxid' and datname = current_database()"
        ):
            assert not building.done()
        builder.cancel()
        assert isinstance(building.exception(), psycopg.errors.QueryCanceled)
    (finding,) = _findings(run("db", "check", "--json", "--url", url))
    assert finding["severity"] == ("wrong" if definition else "warning")
    assert "INVALID" in finding["problem"]
    _execute(url, finding["advice"].removeprefix("Run: "))
    assert _findings(run("db", "check", "--json", "--url", url)) == []


def test_a_role_that_lacks_rights_is_told_which_and_how_to_get_them(
    run: Run, postgres: Databases, role: str, url: str
) -> None:
    database = url.rpartition("/")[2]
    theirs = postgres.url(database, user=role)
    _execute(url, "revoke execute on all functions in schema holdfast from public")
    ran = run("db", "check", "--json", "--url", theirs)
    (finding,) = _findings(ran)
    assert (ran.status, ran.json["schema"], finding["severity"]) == (1, None, "wrong")
    assert finding["problem"].startswith(f'The role "{role}" lacks rights: usage of the schema, ')
    for statement in finding["advice"].partition("run: ")[2].rstrip(";").split("; "):
        _execute(url, statement)
    assert _findings(run("db", "check", "--json", "--url", theirs)) == []
    for right, lacking in {
        "delete on holdfast.jobs": "delete on jobs",
        "usage on sequence holdfast.places": "usage of places",
        "execute on function holdfast.enqueue": "execute of enqueue",
        "select on holdfast.migrations": "select on migrations",
    }.items():
        _execute(url, f'revoke {right} from "{role}"')
        (finding,) = _findings(run("db", "check", "--json", "--url", theirs))
        assert finding["problem"] == f'The role "{role}" lacks rights: {lacking}.'
        _execute(url, f'grant {right} to "{role}"')


def test_settings_that_endanger_jobs_are_found(run: Run, url: str) -> None:
    found = {
        finding["problem"]: finding["severity"]
        for finding in run("db", "check", "--json", "--url", url).json["findings"]
    }
    assert found == {
        "fsync is off: a power failure of the server loses jobs, or the whole database.": "wrong",
        "full_page_writes is off: a power failure of the server loses jobs, or the whole database.": "wrong",
    }


@pytest.mark.parametrize(
    ("setting", "severity", "problem"),
    [
        ("synchronous_commit = off", "warning", "synchronous_commit is off. Holdfast waits for the disk all the same"),
        ("default_transaction_read_only = on", "wrong", "Transactions are read-only by default"),
    ],
)
def test_settings_of_the_role_or_the_database_are_found(
    run: Run, url: str, setting: str, severity: str, problem: str
) -> None:
    _execute(url, f"alter database {url.rpartition('/')[2]} set {setting}")
    (finding,) = _findings(run("db", "check", "--json", "--url", url))
    assert finding["severity"] == severity
    assert finding["problem"].startswith(problem)


def test_a_pool_that_is_larger_than_the_server_allows_is_found(run: Run, url: str) -> None:
    separator = "&" if "?" in url else "?"
    (finding,) = _findings(run("db", "check", "--json", "--url", f"{url}{separator}pool_size=999"))
    assert finding["severity"] == "wrong"
    assert re.match(r"One process may open 1001 connections \(pool_size 999, and 2 besides\)", finding["problem"])


def test_a_language_that_is_missing_is_found(run: Run, url: str) -> None:
    _execute(url, "drop extension plpgsql cascade")
    problems = [finding["problem"] for finding in _findings(run("db", "check", "--json", "--url", url))]
    assert "PostgreSQL's own language plpgsql is missing." in problems
    assert "The function enqueue(text, text) is missing." in problems


def test_another_encoding_is_a_warning(run: Run, postgres: Databases) -> None:
    name = f"holdfast_test_{uuid4().hex[:8]}"
    postgres.execute(
        sql.SQL("create database {} encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0").format(
            sql.Identifier(name)
        )
    )
    try:
        run("db", "migrate", "--url", postgres.url(name))
        (finding,) = _findings(run("db", "check", "--json", "--url", postgres.url(name)))
        assert finding["severity"] == "warning"
        assert finding["problem"].startswith("The database's encoding is LATIN1")
    finally:
        postgres.drop_database(name)


def test_a_pooler_in_between_is_noticed(run: Run, url: str, pgbouncer: PgBouncer) -> None:
    for _ in range(2):
        (finding,) = _findings(run("db", "check", "--json", "--url", pgbouncer.through(url)))
        assert finding["severity"] == "note"
        assert finding["problem"].startswith("There is a connection pooler in between")
    ran = run("db", "migrate", "--url", pgbouncer.through(url))
    assert (ran.status, ran.out) == (0, f"up to date: schema {NOW}\n")


def test_a_password_is_never_printed(run: Run, postgres: Databases, url: str) -> None:
    secret = postgres.url(url.rpartition("/")[2], user="postgres", password="s3cret")
    for command in (["check"], ["check", "--json"], ["migrate"], ["migrate", "--json"], ["migrate", "--dry-run"]):
        ran = run("db", *command, "--url", secret)
        assert "s3cret" not in ran.out + ran.err
        assert "postgres:***@" in ran.out + ran.err
