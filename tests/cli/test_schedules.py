"""`holdfast schedules`, on a SQLite file and on PostgreSQL."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import Holdfast
from tests.cli.conftest import Run

SHOP = """
from holdfast import Holdfast
hf = Holdfast()

@hf.cron("0 9 * * mon-fri", tz="Europe/Paris")
def digest() -> None: ...

@hf.task
def report(tenant: str, token: str = "") -> None: ...
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database that a worker of the shop has declared its schedules to."""
    url = f"sqlite:///{folder}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("migrated_database")
    hf = Holdfast(url)

    @hf.cron("0 9 * * mon-fri", tz="Europe/Paris")
    def digest() -> None: ...

    @hf.task
    def report(tenant: str, token: str = "") -> None: ...

    hf.publish_tasks()
    hf.close()
    monkeypatch.setenv("HOLDFAST_URL", url)
    return str(url)


def test_schedules_are_listed_with_how_they_stand(run: Run, url: str) -> None:
    ran = run("schedules", "ls")
    assert ran.status == 0
    titles, line = ran.out.splitlines()
    assert titles.split() == ["NAME", "WHEN", "TASK", "STATE", "NEXT", "LAST"]
    assert line.startswith("digest  cron 0 9 * * mon-fri Europe/Paris  digest  active")
    [data] = run("schedules", "ls", "--json").json
    assert (data["name"], data["state"], data["source"], data["is_changed"]) == ("digest", "active", "code", False)
    assert (data["plan"]["cron"], data["plan"]["tz"], len(data["next"])) == ("0 9 * * mon-fri", "Europe/Paris", 5)


def test_the_next_ticks_are_shown_in_utc_and_where_they_are(run: Run, url: str) -> None:
    ran = run("schedules", "next", "digest", "-n", "3")
    assert ran.status == 0
    assert [" 09:00:00 CE" in line for line in ran.out.splitlines()] == [True, True, True]
    ticks = [datetime.fromisoformat(tick) for tick in run("schedules", "next", "digest", "--json").json]
    assert len(ticks) == 5
    assert ticks == sorted(ticks)


def test_a_schedule_is_added_run_paused_resumed_and_removed(run: Run, url: str) -> None:
    arguments = '{"tenant": "acme", "token": "secret-7"}'
    added = run(
        "schedules", "add", "acme", "report", "--every", "5m", "--args", arguments, "--priority", "high", "--json"
    )
    assert added.status == 0
    assert (added.json["plan"]["every"], added.json["plan"]["priority"], added.json["source"]) == (300.0, 8, "runtime")
    job = UUID(run("schedules", "run", "acme").out.strip())
    hf = Holdfast(url)
    record = hf.jobs.get(job)
    assert (record.args["tenant"], record.priority, record.context) == ("acme", 8, {"schedule": "acme"})
    hf.close()
    changed = run("schedules", "change", "acme", "--every", "90", "--queue", "slow", "--json")
    assert (changed.json["plan"]["every"], changed.json["plan"]["queue"]) == (90.0, "slow")
    assert changed.json["plan"]["priority"] == 8, "as before"
    assert "secret-7" not in changed.out
    assert run("schedules", "change", "acme").status == 2
    assert "paused" in run("schedules", "pause", "acme").out
    assert run("schedules", "next", "acme", "--json").json == []
    assert run("schedules", "resume", "acme", "--json").json["state"] == "active"
    listed = run("schedules", "ls", "--json")
    assert "secret-7" not in listed.out, "arguments may be secret"
    assert run("schedules", "rm", "acme").out == "removed acme\n"
    assert [schedule["name"] for schedule in run("schedules", "ls", "--json").json] == ["digest"]


def test_what_was_removed_from_the_code_s_comes_back_with_a_reset(run: Run, url: str) -> None:
    assert run("schedules", "rm", "digest").status == 0
    assert run("schedules", "ls", "--json").json[0]["state"] == "removed"
    again = run("schedules", "run", "digest")
    assert (again.status, again.out) == (3, "")
    assert "reset" in again.err
    assert run("schedules", "reset", "digest", "--json").json["state"] == "active"


def test_what_was_changed_is_shown_beside_what_the_code_says(run: Run, url: str) -> None:
    hf = Holdfast(url)
    hf.schedules.change("digest", cron="30 9 * * *")
    hf.close()
    assert "active, changed" in run("schedules", "ls").out
    [data] = run("schedules", "ls", "--json").json
    assert (data["plan"]["cron"], data["declared"]["cron"]) == ("30 9 * * *", "0 9 * * mon-fri")


def test_one_that_no_worker_declares_is_shown_as_orphaned(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.schedule.ORPHANED_AFTER", timedelta(0))
    assert run("schedules", "ls", "--json").json[0]["state"] == "orphaned"


@pytest.mark.parametrize(
    ("command", "status", "hint"),
    [
        (("next", "nobody"), 3, "no schedule"),
        (("next", "digst"), 3, "digest"),
        (("pause", "nobody"), 3, "no schedule"),
        (("add", "x", "nobody", "--every", "1h"), 3, "No task named"),
        (("add", "x", "report", "--every", "1h"), 1, "tenant"),
        (("add", "x", "report"), 1, "tenant"),
        (("add", "x", "digest"), 2, "one of cron"),
        (("add", "x", "digest", "--cron", "x"), 2, "five"),
        (("add", "x", "digest", "--every", "1h", "--tz", "Paris"), 2, "Europe/Paris"),
        (("add", "x", "digest", "--every", "1h", "--args", "{"), 2, "JSON"),
        (("add", "digest", "digest", "--every", "1h"), 2, "already"),
        (("add", "x", "digest", "--every", "1h", "--catchup", "twice"), 2, "once"),
        (("next", "digest", "-n", "0"), 2, "--number"),
    ],
)
def test_what_is_wrong_is_told_with_its_status(
    run: Run, url: str, command: tuple[str, ...], status: int, hint: str
) -> None:
    ran = run("schedules", *command)
    assert (ran.status, ran.out) == (status, "")
    assert hint in ran.err


def test_a_question_creates_no_database(run: Run, folder: Path) -> None:
    ran = run("schedules", "ls", "--url", f"sqlite:///{folder}/none.db")
    assert (ran.status, ran.out) == (4, "")
    assert "Start a worker" in ran.err
    assert list(folder.iterdir()) == []


def test_an_app_is_named_instead_of_a_url(run: Run, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "scheduled_shop.py").write_text(SHOP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "scheduled_shop", raising=False)
    ran = run("schedules", "add", "acme", "report", "--every", "1h", "--args", "{}", "--app", "scheduled_shop")
    assert (ran.status, "tenant" in ran.err) == (1, True)
    ran = run("schedules", "add", "x", "digest", "--every", "1h", "--app", "scheduled_shop")
    assert ran.status == 0
    hf = Holdfast(url)
    assert [record.name for record in hf.schedules.all()] == ["digest", "x"]
    hf.close()
    sys.modules.pop("scheduled_shop", None)
