"""G6 when the process dies, or the disk fails, at each single system call of a task's commit."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.store import Settled
from tests.crash.audit import check_counters, look, new_job, opened
from tests.crash.line import Gone
from tests.crash.nursery import Actor, Nursery
from tests.crash.tracing import require_strace, traced, was_injected

_MOST_CALLS = 200


@pytest.fixture(autouse=True)
def _strace() -> None:
    require_strace()


@contextmanager
def about_to_complete(nursery: Nursery, folder: Path, call: str, harm: str) -> Iterator[tuple[Actor, Path, Path]]:
    """A process whose task has written all, the file, and what strace has seen."""
    path, log = folder / "jobs.db", folder / "strace"
    with nursery.start("complete_when_told", path=path) as actor:
        actor.hear("ready")
        with traced(actor.pid, log, "-e", f"trace={call}", "-e", f"inject={call}:{harm}"):
            try:
                yield actor, path, log
            finally:
                actor.kill()


async def prepare(folder: Path) -> None:
    os.mkdir(folder)
    async with opened(folder / "jobs.db") as store:
        await store.enqueue([new_job()])
    with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as raw:
        raw.execute("create table ledger (entry text)")


async def check(path: Path) -> bool:
    """All of it is there, or nothing is. True if it is."""
    async with opened(path) as store:
        await check_counters(store)
    assert look(path, "pragma integrity_check") == [("ok",)]
    ((stage, id),) = look(path, "select stage, hex(id) from holdfast_jobs where queue <> 'followers'")
    entries = [entry for (entry,) in look(path, "select entry from ledger")]
    ((followers,),) = look(path, "select count(*) from holdfast_jobs where queue = 'followers'")
    is_completed = stage == 4
    assert entries == ([id.lower()] if is_completed else [])
    assert followers == is_completed
    return bool(is_completed)


@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
async def test_a_kill_at_each_call_of_the_commit_leaves_all_or_nothing(
    nursery: Nursery, tmp_path: Path, call: str
) -> None:
    killed = 0
    for number in range(1, _MOST_CALLS):
        await prepare(folder := tmp_path / str(number))
        try:
            with about_to_complete(nursery, folder, call, f"signal=SIGKILL:when={number}") as (actor, path, _):
                actor.say("go")
                assert actor.hear("done")["answer"] == Settled.APPLIED
        except Gone:
            killed += 1
            await check(folder / "jobs.db")
            continue
        assert await check(path)
        break
    assert killed, "nothing was ever killed, so nothing was tested"


@pytest.mark.parametrize(("call", "error"), [("pwrite64", "EIO"), ("pwrite64", "ENOSPC"), ("fdatasync", "EIO")])
async def test_a_disk_error_at_each_call_of_the_commit_is_told_and_resolved_by_the_token(
    nursery: Nursery, tmp_path: Path, call: str, error: str
) -> None:
    injected = 0
    for number in range(1, _MOST_CALLS):
        await prepare(folder := tmp_path / str(number))
        with about_to_complete(nursery, folder, call, f"error={error}:when={number}") as (actor, path, log):
            actor.say("go")
            done = actor.hear("done")
            assert done["error"] in (None, "StoreUnavailable", "OutcomeUnknown")
            actor.say("give back")
            given_back = actor.hear("given back")["answer"]
        is_completed = await check(path)
        assert given_back == (Settled.ALREADY if is_completed else Settled.APPLIED)
        if done["error"] != "OutcomeUnknown":
            assert is_completed is (done["error"] is None)
        if not was_injected(log):
            break
        injected += 1
    assert injected, "no call ever failed, so nothing was tested"
