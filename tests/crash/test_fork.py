"""A process forks while its writer is in the middle of a transaction."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.crash.audit import check_counters, check_keys, check_usable, keys_in, look, opened
from tests.crash.journal import Entries
from tests.crash.line import PATIENCE
from tests.crash.nursery import Nursery
from tests.crash.rounds import EPISODES


async def test_a_forked_child_that_stays_does_not_disturb_its_parent(nursery: Nursery, path: Path) -> None:
    with nursery.start("fork_in_transaction", path=path, child="stays") as parent:
        child = parent.hear("forked")["pid"]
        try:
            parent.say("go")
            parent.hear("done")
        finally:
            os.kill(child, signal.SIGKILL)
    await _check(path, jobs=3)


async def test_a_forked_child_that_stays_does_not_keep_its_killed_parents_turn(nursery: Nursery, path: Path) -> None:
    with nursery.start("fork_in_transaction", path=path, child="stays") as parent:
        child = parent.hear("forked")["pid"]
        try:
            parent.kill()
            await _check(path, jobs=None)
        finally:
            os.kill(child, signal.SIGKILL)


async def test_a_forked_child_that_exits_does_not_break_its_parents_transaction(nursery: Nursery, path: Path) -> None:
    with nursery.start("fork_in_transaction", path=path, child="exits") as parent:
        parent.hear("forked")
        assert parent.hear("child ended")["status"] == 0
        parent.say("go")
        parent.hear("done")
    await _check(path, jobs=3)


async def test_a_forked_child_enqueues_on_its_own_after_its_parents_transaction(nursery: Nursery, path: Path) -> None:
    with nursery.start("fork_in_transaction", path=path, child="enqueues") as parent:
        parent.hear("forked")
        parent.say("go")
        assert parent.hear("child ended")["status"] == 0
        parent.hear("done")
    await _check(path, jobs=4)


async def _check(path: Path, jobs: int | None) -> None:
    async with opened(path) as store:
        assert jobs is None or len(set(keys_in(path))) == jobs
        await check_counters(store)
        await check_usable(store)
    assert look(path, "pragma integrity_check") == [("ok",)]


async def test_a_forked_child_keeps_its_jobs_when_its_parent_closes_the_file(nursery: Nursery, path: Path) -> None:
    """A server that enqueues, forks its workers, and leaves the work to them."""
    with nursery.start("fork_when_idle", path=path) as parent:
        assert parent.hear("done")["status"] == 0
    await _check(path, jobs=3)


@EPISODES
@pytest.mark.usefixtures("episode")
async def test_children_forked_at_any_moment_of_a_busy_process_end_and_leave_it_alone(
    nursery: Nursery, path: Path, journal: Path
) -> None:
    with nursery.start("fork_while_busy", path=path, journal=journal, forks=15) as parent:
        answer = parent.hear("done", PATIENCE * 10)
    assert set(answer["statuses"]) == {0}, "a child was still there after seconds"
    entries = Entries(journal)
    check_keys(keys_in(path), entries)
    await _check(path, jobs=len(entries.acked))
