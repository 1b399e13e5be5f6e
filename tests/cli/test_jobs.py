"""`holdfast jobs`, on a SQLite file and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import Holdfast, Limit
from holdfast.ids import Ids
from holdfast.store import NewWorker
from tests.cli.conftest import Run


@pytest.fixture(params=["sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    """An app on a database that the environment names."""
    url = f"sqlite:///{folder}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("migrated_database")
    monkeypatch.setenv("HOLDFAST_URL", url)
    hf = Holdfast(url)
    yield hf
    hf.close()


def test_a_job_is_explained_in_a_sentence(run: Run, hf: Holdfast) -> None:
    @hf.task
    def report() -> None: ...

    job = report.options(delay="1h").enqueue()
    ran = run("jobs", "explain", str(job.id))
    assert ran.status == 0
    assert ran.out.startswith("waiting: scheduled for 20")
    assert ran.out.endswith("; no worker is alive\n")
    assert ran.err == ""


def test_all_reasons_are_there_as_json(run: Run, hf: Holdfast) -> None:
    @hf.task(limit=Limit(1, "{tenant}"))
    def charge(tenant: str) -> None: ...

    hf.publish_tasks()
    worker = uuid4()
    store = hf.engine.store
    hf.engine.wait(store.register(NewWorker(worker, "box", tasks=("charge",))), "")
    charge.enqueue("acme")
    job = charge.enqueue("acme")
    hf.engine.wait(store.claim(worker, uuid4(), {"default": 5}), "")
    assert run("jobs", "explain", str(job.id)).out == "waiting: limit tenant=acme 1/1; it is the next in its line\n"
    data = run("jobs", "explain", str(job.id), "--json").json
    assert (data["id"], data["state"]) == (str(job.id), "pending")
    assert data["text"] == "waiting: limit tenant=acme 1/1; it is the next in its line"
    assert [reason["kind"] for reason in data["reasons"]] == ["limit", "position"]
    assert data["reasons"][0]["details"] == {"name": "charge", "key": "acme", "used": 1, "most": 1}


def test_a_job_that_is_not_there_is_not_found(run: Run, hf: Holdfast) -> None:
    hf.jobs.count()
    ran = run("jobs", "explain", str(Ids().make()))
    assert (ran.status, ran.out) == (3, "")
    assert "There is no job" in ran.err


def test_what_is_no_id_is_refused(run: Run, hf: Holdfast) -> None:
    hf.jobs.count()
    ran = run("jobs", "explain", "17")
    assert (ran.status, ran.out) == (2, "")
    assert "UUIDv7" in ran.err


def test_a_question_creates_no_database(run: Run, folder: Path) -> None:
    ran = run("jobs", "explain", str(Ids().make()), "--url", f"sqlite:///{folder}/none.db")
    assert (ran.status, ran.out) == (4, "")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", [["jobs"], ["jobs", "explain"], ["limits"], ["limits", "ls"], ["limits", "set"]])
def test_every_command_has_help(run: Run, command: list[str]) -> None:
    ran = run(*command, "--help")
    assert ran.status == 0
    assert ran.out.startswith(f"Usage: {' '.join(['holdfast', *command])}")
