"""G1 when the power goes: what was acknowledged had reached the disk, and not only the kernel."""

# ruff: noqa: ASYNC240  # a test blocks nobody but itself

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.audit import check_keys, keys_in, look, opened
from tests.crash.journal import Entries
from tests.crash.nursery import Nursery
from tests.crash.power import OPTIONS, Call, Disk, read_calls
from tests.crash.rounds import IS_THOROUGH
from tests.crash.tracing import require_strace, traced

_SIDES = ("", "-wal")


@pytest.fixture(autouse=True)
def _strace() -> None:
    require_strace()


async def _calls(nursery: Nursery, path: Path, journal: Path, *injections: str) -> tuple[Disk, list[Call]]:
    """The disk before, and what a process does to it that enqueues, claims and settles for a while."""
    log = journal.with_name("strace")
    with nursery.start("mix", path=path, journal=journal) as actor:
        actor.hear("ready")
        before = {f"{path}{side}": Path(f"{path}{side}").read_bytes() for side in _SIDES}
        with traced(actor.pid, log, *OPTIONS, *injections):
            actor.say("go")
            actor.hear("done")
            actor.kill()
    return Disk(before), list(read_calls(log))


async def _check_every_moment(path: Path, journal: Path, disk: Disk, calls: list[Call]) -> int:
    """Let the power go after each acknowledgement, and at some other moments, and look at what is left."""
    chance = random.Random("power")
    seen, moments = b"", 0
    folder = path.parent / "after"
    folder.mkdir()
    for number, call in enumerate(calls):
        if call.path == str(journal):
            seen += call.data
        else:
            disk.take(call)
        if (call.path == str(journal) and b"ack" in call.data) or chance.random() < (1.0 if IS_THOROUGH else 0.05):
            moments += 1
            copy, acked = folder / f"{number}.db", folder / f"{number}.journal"
            acked.write_bytes(seen)
            for side in _SIDES:
                file = disk.files.get(f"{path}{side}")
                if file is not None:
                    Path(f"{copy}{side}").write_bytes(file.after_power_loss(chance))
            async with opened(copy):
                check_keys(keys_in(copy), Entries(acked))
                assert look(copy, "pragma integrity_check") == [("ok",)]
            for left in folder.iterdir():
                if left.is_file():
                    left.unlink()
    return moments


async def test_what_was_acknowledged_is_on_the_disk_at_every_moment(
    nursery: Nursery, path: Path, journal: Path
) -> None:
    disk, calls = await _calls(nursery, path, journal)
    assert await _check_every_moment(path, journal, disk, calls) > 20


@pytest.mark.parametrize("number", [2, 3, 4, 7])
async def test_what_is_acknowledged_after_a_failed_sync_is_on_the_disk_too(
    nursery: Nursery, path: Path, journal: Path, number: int
) -> None:
    """A kernel that could not write forgets the pages, and the next sync says that all is well."""
    disk, calls = await _calls(nursery, path, journal, "-e", f"inject=fdatasync:error=EIO:when={number}")
    assert any(call.has_failed for call in calls)
    assert await _check_every_moment(path, journal, disk, calls) > 20
