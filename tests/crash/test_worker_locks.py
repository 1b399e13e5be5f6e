"""Who is alive, seen by the locks that the kernel lets go of."""

# ruff: noqa: ASYNC240  # a test blocks nobody but itself

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from holdfast.liveness import Observer
from holdfast.store import Held, NewWorker
from holdfast.stores.sqlite import SqliteStore, worker_locks
from tests.crash.audit import check_usable, opened
from tests.crash.line import PATIENCE
from tests.crash.nursery import Actor, Nursery
from tests.crash.rounds import cannot


def _files(path: Path) -> list[str]:
    folder = Path(f"{path}-workers")
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


async def _is_locked(store: SqliteStore, worker: UUID) -> bool | None:
    (sighting,) = [sighting for sighting in await store.sightings() if sighting.worker == worker]
    return sighting.is_locked


def _stop(actor: Actor) -> None:
    os.kill(actor.pid, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{actor.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "It does not stop."
        time.sleep(0.002)  # only its parent could wait for it


async def test_a_killed_process_is_seen_at_once(nursery: Nursery, path: Path) -> None:
    worker = uuid4()
    async with opened(path) as store:
        with nursery.start("live", path=path, worker=worker) as actor:
            actor.hear("ready")
            assert await _is_locked(store, worker) is True
            actor.kill()
            assert await _is_locked(store, worker) is False
        observer = Observer()
        assert observer.observe(await store.sightings(), 100.0) == {}
        gone = observer.observe(await store.sightings(), 100.0 + worker_locks.FREE_FOR.total_seconds())
        assert _files(path) == [worker.hex]
        await store.rescue(gone)
        assert await store.sightings() == []
        assert _files(path) == []


async def test_a_stopped_process_keeps_its_lock(nursery: Nursery, path: Path) -> None:
    worker = uuid4()
    async with opened(path) as store:
        with nursery.start("live", path=path, worker=worker) as actor:
            actor.hear("ready")
            _stop(actor)
            assert await _is_locked(store, worker) is True


@pytest.mark.parametrize("child", ["forked", "spawned"])
async def test_a_child_does_not_keep_its_killed_parents_lock(nursery: Nursery, path: Path, child: str) -> None:
    worker = uuid4()
    async with opened(path) as store:
        with nursery.start("live", path=path, worker=worker, child=child) as actor:
            pid = actor.hear("ready")["child"]
            try:
                assert await _is_locked(store, worker) is True, "the child must not let go of it either"
                actor.kill()
                assert await _is_locked(store, worker) is False
            finally:
                os.kill(pid, signal.SIGKILL)


async def test_a_worker_that_departs_or_is_buried_or_whose_store_is_closed_leaves_no_file(
    nursery: Nursery, path: Path
) -> None:
    buried, closed, departed = uuid4(), uuid4(), uuid4()
    async with opened(path) as store:
        await store.register(NewWorker(buried, "worker"))
        await store.register(NewWorker(closed, "worker"))
        with nursery.start("live", path=path, worker=departed) as actor:
            actor.hear("ready")
            assert _files(path) == sorted(worker.hex for worker in (buried, closed, departed))
            await store.bury_worker(buried)
            actor.say("depart")
            actor.hear("departed")
        assert _files(path) == [closed.hex]
        assert await _is_locked(store, closed) is True
    assert _files(path) == []
    async with opened(path) as store:
        assert await _is_locked(store, closed) is None, "it may live on: only its heartbeats can tell"


async def test_a_worker_that_registers_again_elsewhere_is_not_judged_by_its_former_life(
    nursery: Nursery, path: Path
) -> None:
    worker = uuid4()
    async with opened(path) as store:
        with nursery.start("live", path=path, worker=worker) as actor:
            actor.hear("ready")
            actor.kill()
        assert await _is_locked(store, worker) is False
        with nursery.start("live", path=path, worker=worker) as actor:
            actor.hear("ready")
            assert await _is_locked(store, worker) is True
            assert _files(path) == [worker.hex]


async def test_a_worker_that_was_wrongly_declared_dead_takes_its_lock_anew(path: Path) -> None:
    worker = NewWorker(uuid4(), "worker")
    async with opened(path) as store, opened(path) as observing:
        await store.register(worker)
        await observing.rescue({worker.id: 1})
        assert _files(path) == []
        await store.register(worker)
        assert await _is_locked(observing, worker.id) is True


@pytest.mark.parametrize("change", ["take", "let_go"])
async def test_a_lock_that_changes_hands_while_it_is_looked_at_is_not_taken_for_free(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    worker = uuid4()
    async with opened(path) as store, opened(path) as observing:
        await store.register(NewWorker(worker, "worker"))
        flock = fcntl.flock

        def change_hands_first(file: int, operation: int) -> None:
            if operation & fcntl.LOCK_SH:
                getattr(store._locks, change)(worker)
            flock(file, operation)

        monkeypatch.setattr(fcntl, "flock", change_hands_first)
        assert await _is_locked(observing, worker) is None


async def test_a_folder_that_can_not_be_made_does_no_harm(path: Path) -> None:
    Path(f"{path}-workers").write_text("not a folder")
    worker = uuid4()
    async with opened(path) as store, opened(path) as observing:
        await check_usable(store)
        await store.register(NewWorker(worker, "worker"))
        assert await _is_locked(store, worker) is None
        assert await _is_locked(observing, worker) is None
        assert (await store.beat(worker, Held({}))).is_alive
        await store.depart(worker)


async def test_a_folder_without_rights_does_no_harm(nursery: Nursery, shared_folder: Path) -> None:
    if os.geteuid() != 0:
        cannot("only root can become a user without rights")
    path = shared_folder / "jobs.db"
    path.touch()
    path.chmod(0o666)
    Path(f"{path}-workers").mkdir(mode=0o555)
    worker = uuid4()
    with nursery.start("work_without_rights", path=path, worker=worker) as actor:
        actor.hear("ready")
        async with opened(path) as store:
            assert await _is_locked(store, worker) is None
        actor.say("depart")
        actor.hear("departed")


async def test_where_files_can_not_be_locked_nothing_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_locks, "fcntl", None)
    worker = uuid4()
    async with opened(path) as store:
        await store.register(NewWorker(worker, "worker"))
        assert await _is_locked(store, worker) is None
        await store.depart(worker)
    assert _files(path) == []
