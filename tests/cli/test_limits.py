"""`holdfast limits`, on a SQLite file and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import Holdfast, Limit, Rate
from holdfast.store import NewWorker
from tests.cli.conftest import Run


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database where one of three jobs runs, and the others wait for it."""
    url = f"sqlite:///{folder}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("migrated_database")
    hf = Holdfast(url)

    @hf.task(limit=Limit(1, "{tenant}"), rate=Rate(100, "1m", name="provider"))
    def charge(tenant: str) -> None: ...

    hf.publish_tasks()
    hf.enqueue_many(charge.call("acme") for _ in range(3))
    worker = uuid4()
    store = hf.engine.store
    hf.engine.wait(store.register(NewWorker(worker, "box")), "")
    for _ in range(2):
        hf.engine.wait(store.claim(worker, uuid4(), {"default": 5}), "")
    hf.close()
    monkeypatch.setenv("HOLDFAST_URL", url)
    return str(url)


def test_limits_are_listed_those_that_jobs_wait_for_first(run: Run, url: str) -> None:
    ran = run("limits", "ls")
    assert ran.status == 0
    assert [line.split() for line in ran.out.splitlines()] == [
        ["KIND", "NAME", "KEY", "USED", "PER", "WAITING", "ROOM", "AT"],
        ["limit", "charge", "acme", "1/1", "-", "2", "-"],
        ["rate", "provider", "-", "1/100", "1m", "0", "-"],
    ]
    first, second = run("limits", "ls", "--json").json
    assert (first["kind"], first["name"], first["key"], first["used"], first["most"]) == (
        "limit",
        "charge",
        "acme",
        1,
        1,
    )
    assert (first["waiting"], first["override"], first["per"]) == (2, None, None)
    assert (second["per"], second["next_at"]) == (60.0, None)


@pytest.mark.parametrize(
    ("filter", "kinds"),
    [
        (["charge"], ["limit"]),
        (["--kind", "rate"], ["rate"]),
        (["--key", "acme"], ["limit"]),
        (["-n", "1"], ["limit"]),
        (["nobody"], []),
    ],
)
def test_some_of_them_are_asked_for(run: Run, url: str, filter: list[str], kinds: list[str]) -> None:
    assert [record["kind"] for record in run("limits", "ls", *filter, "--json").json] == kinds


def test_a_limit_is_set_and_reset(run: Run, url: str) -> None:
    assert run("limits", "set", "charge", "3", "--key", "acme").out == "charge acme: limit 1/3 (code: 1)\n"
    assert run("limits", "ls", "charge").out.splitlines()[1].split()[3:6] == ["1/3", "(code:", "1)"]
    assert run("limits", "set", "provider", "5", "--kind", "rate").out == "provider: rate 1/5 (code: 100) per 1m\n"
    after = run("limits", "reset", "charge", "--key", "acme", "--json").json
    assert (after["most"], after["override"], after["declared"]) == (1, None, 1)


def test_a_key_that_has_no_jobs_yet_can_be_given_another_limit(run: Run, url: str) -> None:
    assert run("limits", "set", "charge", "9", "--key", "initech").status == 0
    [record] = run("limits", "ls", "--key", "initech", "--json").json
    assert (record["most"], record["declared"], record["used"]) == (9, 1, 0)


@pytest.mark.parametrize(
    ("command", "status", "hint"),
    [
        (("set", "charge", "3"), 2, "has a key, {tenant}"),
        (("set", "provider", "3", "--kind", "rate", "--key", "x"), 2, "has no key"),
        (("set", "chrage", "3", "--key", "acme"), 3, "'charge'"),
        (("set", "nobody", "3"), 3, "no limit 'nobody'"),
        (("reset", "nobody"), 3, "no limit 'nobody'"),
        (("reset", "charge", "--key", "initech"), 3, "Nothing is set or used"),
        (("set", "charge", "0", "--key", "acme"), 2, "from 1 to"),
        (("set", "charge", "3", "--kind", "order"), 2, "Only a limit and a rate"),
        (("set", "charge", "3", "--kind", "speed"), 2, "is one of"),
        (("ls", "--kind", "speed"), 2, "is one of"),
        (("ls", "-n", "0"), 2, "--number"),
    ],
)
def test_what_is_wrong_is_told_with_its_status(
    run: Run, url: str, command: tuple[str, ...], status: int, hint: str
) -> None:
    ran = run("limits", *command)
    assert (ran.status, ran.out) == (status, "")
    assert hint in ran.err


def test_a_question_creates_no_database(run: Run, folder: Path) -> None:
    ran = run("limits", "ls", "--url", f"sqlite:///{folder}/none.db")
    assert (ran.status, ran.out) == (4, "")
    assert list(folder.iterdir()) == []
