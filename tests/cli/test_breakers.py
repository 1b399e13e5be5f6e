"""`holdfast breakers`, on a SQLite file and on PostgreSQL."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.cli.conftest import Run


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a closed breaker and an open one."""
    url = f"sqlite:///{folder}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("migrated_database")
    hf = Holdfast(url)
    hf.breaker("bank", probes=3)
    stripe = hf.breaker("stripe", failures=2, reset="1h")
    for _ in range(2):
        with contextlib.suppress(ConnectionError), stripe:
            raise ConnectionError
    hf.close()
    monkeypatch.setenv("HOLDFAST_URL", url)
    return str(url)


def test_breakers_are_listed_with_how_they_stand(run: Run, url: str) -> None:
    ran = run("breakers", "ls")
    assert ran.status == 0
    titles, bank, stripe = ran.out.splitlines()
    assert titles.split() == ["NAME", "STATE", "FAILURES", "LAST", "OPENED", "RESET", "PROBES"]
    assert bank.split() == ["bank", "closed", "0/5", "-", "-", "after", "1m", "0/3"]
    assert stripe.split()[:4] == ["stripe", "open", "2/2", "ConnectionError"]
    closed, opened = run("breakers", "ls", "--json").json
    assert (closed["name"], closed["state"], closed["reset_at"], closed["reset_in"]) == ("bank", "closed", None, None)
    assert closed["policy"] == {"failures": 5, "reset": 60.0, "probes": 3}
    assert (opened["state"], opened["failures"], opened["last_error"]) == ("open", 2, "ConnectionError")
    assert 0 < opened["reset_in"] <= 3600
    assert opened["reset_at"] > opened["opened_at"]


def test_a_breaker_is_reset(run: Run, url: str) -> None:
    assert run("breakers", "reset", "stripe").out == "stripe: closed\n"
    assert [breaker["state"] for breaker in run("breakers", "ls", "--json").json] == ["closed", "closed"]


def test_a_breaker_is_opened_by_hand(run: Run, url: str) -> None:
    assert run("breakers", "open", "bank").out.startswith("bank: open until 20")
    opened = run("breakers", "open", "bank", "--for", "2h", "--json").json
    assert (opened["state"], round(opened["reset_in"])) == ("open", 7200)


def test_a_breaker_that_is_not_there_is_not_found(run: Run, url: str) -> None:
    ran = run("breakers", "reset", "strip")
    assert (ran.status, ran.out) == (3, "")
    assert "Did you mean 'stripe'?" in ran.err
    assert run("breakers", "open", "stripe", "--for", "soon").status == 2


def test_a_question_creates_no_database(run: Run, folder: Path) -> None:
    ran = run("breakers", "ls", "--url", f"sqlite:///{folder}/none.db")
    assert ran.status == 4
    assert not (folder / "none.db").exists()
