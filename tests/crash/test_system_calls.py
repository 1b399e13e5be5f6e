"""G1 when the process dies, or the disk fails, at each single system call of a commit."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.crash.audit import audit, keys_in, look, new_job, opened
from tests.crash.journal import Entries, Journal
from tests.crash.line import Gone
from tests.crash.nursery import Nursery
from tests.crash.rounds import IS_THOROUGH
from tests.crash.tracing import require_strace, traced, was_injected

_MOST_CALLS = 2000
_CALLS = ("pwrite64", "fdatasync")
_ERRORS = [("pwrite64", "EIO"), ("pwrite64", "ENOSPC"), ("fdatasync", "EIO"), ("fdatasync", "ENOSPC")]


@pytest.fixture(autouse=True)
def _strace() -> None:
    require_strace()


@dataclass(frozen=True)
class Case:
    """What is done while the calls are counted, and to which file."""

    name: str
    kind: str
    template: str
    times: int = 1
    is_open: bool = True
    is_warm: bool = False
    """Has enqueued before: nothing is imported or read for the first time any more."""
    step: int = 1
    """Of a long transaction only every so many-th call is tried, unless there is time."""


CASES = [
    Case("one", "one", "used"),
    Case("bulk", "bulk", "used", step=11),
    Case("crowd", "small crowd", "used", step=9),
    Case("app", "app", "used", step=5),
    Case("app bulk", "app bulk", "used", step=17),
    Case("new file", "one", "none", is_open=False, step=15),
    Case("checkpoint", "one", "full log", times=2, step=7),
]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files to begin with: one that was used and closed, and one whose log is about to be written back."""
    folder = tmp_path_factory.mktemp("templates")
    asyncio.run(_make_used(folder / "used.db"))
    shutil.copy(folder / "used.db", folder / "filling.db")
    with closing(sqlite3.connect(folder / "filling.db", isolation_level=None)) as raw:
        raw.execute("pragma wal_autocheckpoint = 0")
        raw.execute("create table junk (number integer)")
        raw.execute("insert into junk values (0)")
        raw.execute("pragma synchronous = off")
        for _ in range(1000):
            raw.execute("update junk set number = number + 1")
        for suffix in ("", "-wal"):
            shutil.copy(f"{folder / 'filling.db'}{suffix}", f"{folder / 'full log.db'}{suffix}")
    return folder


async def _make_used(path: Path) -> None:
    async with opened(path) as store:
        await store.enqueue([new_job(queue="other") for _ in range(20)])


class Attempt:
    """One run of a case, with one fault."""

    def __init__(self, nursery: Nursery, case: Case, templates: Path, folder: Path, *faults: str) -> None:
        self.path = folder / "jobs.db"
        self.journal = folder / "journal"
        self.log = folder / "strace"
        self._nursery = nursery
        self._case = case
        self._faults = faults
        folder.mkdir()
        for suffix in ("", "-wal"):
            source = Path(f"{templates / case.template}.db{suffix}")
            if source.exists():
                shutil.copy(source, f"{self.path}{suffix}")
        before = Journal(self.journal)
        before.intend(keys_in(self.path) if self.path.exists() else [])
        before.close()

    def run(self, *, repeat: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What the process said of its first try, and of its second if it was to repeat. Gone if it died."""
        case = self._case
        options = {"kind": case.kind, "times": case.times, "is_open": case.is_open, "is_warm": case.is_warm}
        with self._nursery.start("produce_once", path=self.path, journal=self.journal, **options) as actor:
            actor.hear("ready")
            calls = {fault.split(":")[0] for fault in self._faults}
            injections = [part for fault in self._faults for part in ("-e", f"inject={fault}")]
            with traced(actor.pid, self.log, "-e", f"trace={','.join(calls)}", *injections):
                try:
                    actor.say("go")
                    first: list[dict[str, Any]] = actor.hear("done")["outcomes"]
                    again: list[dict[str, Any]] = []
                    if repeat:
                        actor.say("repeat")
                        again = actor.hear("done")["outcomes"]
                    return first, again
                finally:
                    actor.kill()


def _numbers(case: Case, call: str, least: int = 1) -> range:
    """Which calls to try, one run each. Steps are odd: heads and bodies of pages are written by turns."""
    step = 1 if IS_THOROUGH or call == "fdatasync" else max(case.step, least)
    return range(1, _MOST_CALLS, step)


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_kill_at_each_call_of_a_commit_loses_nothing_acknowledged(
    nursery: Nursery, templates: Path, tmp_path: Path, case: Case, call: str
) -> None:
    killed = 0
    for number in _numbers(case, call):
        fault = f"{call}:signal=SIGKILL:when={number}"
        attempt = Attempt(nursery, case, templates, tmp_path / str(number), fault)
        try:
            attempt.run()
        except Gone:
            killed += 1
            await audit(attempt.path, attempt.journal)
            continue
        await audit(attempt.path, attempt.journal)
        break
    assert killed, "nothing was ever killed, so nothing was tested"


@pytest.mark.parametrize(("call", "error"), _ERRORS if IS_THOROUGH else _ERRORS[:3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_single_disk_error_at_each_call_is_survived_or_told(
    nursery: Nursery, templates: Path, tmp_path: Path, case: Case, call: str, error: str
) -> None:
    injected = 0
    for number in _numbers(case, call, least=3):
        fault = f"{call}:error={error}:when={number}"
        attempt = Attempt(nursery, case, templates, tmp_path / str(number), fault)
        first, again = attempt.run(repeat=True)
        _check_errors(first, attempt)
        assert [outcome for outcome in again if outcome["error"]] == []
        await audit(attempt.path, attempt.journal)
        if not was_injected(attempt.log):
            break
        injected += 1
    assert injected, "no call ever failed, so nothing was tested"


@pytest.mark.parametrize(("call", "error"), _ERRORS if IS_THOROUGH else _ERRORS[:3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_disk_that_fails_from_some_call_on_is_told_truthfully(
    nursery: Nursery, templates: Path, tmp_path: Path, case: Case, call: str, error: str
) -> None:
    """And when the process then dies: what was said not to be there is not, and repeating is harmless."""
    injected = 0
    for number in _numbers(case, call, least=3):
        fault = f"{call}:error={error}:when={number}+"
        attempt = Attempt(nursery, case, templates, tmp_path / str(number), fault)
        outcomes, _ = attempt.run()
        _check_errors(outcomes, attempt)
        await audit(attempt.path, attempt.journal)
        there = set(keys_in(attempt.path))
        for outcome in outcomes:
            if outcome["error"] == "StoreUnavailable":
                assert there.isdisjoint(outcome["keys"]), (number, outcome["message"])
        await _repeat(attempt, [outcome for outcome in outcomes if outcome["error"]])
        if not was_injected(attempt.log):
            break
        injected += 1
    assert injected, "no call ever failed, so nothing was tested"


def _check_errors(outcomes: list[dict[str, Any]], attempt: Attempt) -> None:
    acked = set(Entries(attempt.journal).acked)
    for outcome in outcomes:
        if outcome["error"] is None:
            assert acked.issuperset(outcome["keys"])
            continue
        assert outcome["error"] in ("StoreUnavailable", "OutcomeUnknown"), outcome
        assert str(attempt.path) in outcome["message"]
        if outcome["error"] == "OutcomeUnknown":
            assert len(outcome["ids"]) == len(outcome["keys"])


async def _repeat(attempt: Attempt, failed: list[dict[str, Any]]) -> None:
    """A second process, after the crash, with the ids that it has noted."""
    journal = Journal(attempt.journal)
    known = dict(look(attempt.path, "select json_extract(args, '$.key'), id from holdfast_jobs"))
    async with opened(attempt.path) as store:
        for outcome in failed:
            if outcome["ids"] and outcome["ids"] != outcome["keys"]:
                continue  # the app's keys are not its ids; its own process has repeated them in another test
            jobs = [new_job(UUID(key), is_repeat=True) for key in outcome["keys"]]
            answers = await store.enqueue(jobs)
            assert [answer.is_existing for answer in answers] == [key in known for key in outcome["keys"]]
            journal.ack(outcome["keys"])
    journal.close()
    await audit(attempt.path, attempt.journal)


@pytest.mark.parametrize("second", ["openat:error=EMFILE:when=1+", "pwrite64:error=ENOSPC:when={next}+"])
@pytest.mark.parametrize("kind", ["one", "bulk"])
async def test_a_second_fault_while_trying_again_does_not_hide_that_the_first_try_may_be_there(
    nursery: Nursery, templates: Path, tmp_path: Path, kind: str, second: str
) -> None:
    """The first try reaches the log before its sync fails; the second fails in another way, then the process dies."""
    case = Case(kind, kind, "used", is_warm=True)
    counting = Attempt(nursery, case, templates, tmp_path / "count", "pwrite64:error=EIO:when=60000")
    counting.run()
    writes = counting.log.read_text().count("pwrite64(")
    faults = ["fdatasync:error=EIO:when=1", second.format(next=writes + 1)]
    attempt = Attempt(nursery, case, templates, tmp_path / "fail", *faults)
    (outcome,), _ = attempt.run()
    _check_errors([outcome], attempt)
    await audit(attempt.path, attempt.journal)
    is_there = set(keys_in(attempt.path)).issuperset(outcome["keys"])
    assert is_there, "the first try was not in the log, so nothing was tested"
    assert outcome["error"] == "OutcomeUnknown", f"said not to be there, but it is: {outcome['message']}"


async def test_running_out_of_file_handles_is_told_in_our_words(
    nursery: Nursery, templates: Path, tmp_path: Path
) -> None:
    case = Case("crowd", "small crowd", "used")
    attempt = Attempt(nursery, case, templates, tmp_path / "fail", "openat:error=EMFILE:when=1+")
    outcomes, _ = attempt.run()
    _check_errors(outcomes, attempt)
    await audit(attempt.path, attempt.journal)
