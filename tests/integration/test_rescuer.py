"""The rescuer takes over all that a dead worker held, however much that is."""

from __future__ import annotations

from uuid import uuid4

import pytest

from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.maintenance.rescuer import Rescuer
from holdfast.store import NewWorker
from holdfast.stores import memory
from holdfast.testing.clock import ManualClock


async def test_more_jobs_than_one_rescue_takes_over_are_rescued_one_batch_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_BATCH", 2)
    clock, worker = ManualClock(), uuid4()
    store, ids = memory.MemoryStore(clock), Ids(clock)
    rescuer = Rescuer(lambda: store, clock)
    await store.enqueue([NewJob(ids.make(), "task", "default", "{}") for _ in range(5)])
    await store.register(NewWorker(worker, "worker"))
    assert len(await store.claim(worker, uuid4(), {"default": 5})) == 5
    while not rescuer.rescued:
        assert clock.monotonic() < 60, "nobody was rescued"
        clock.advance(4)
        await rescuer.act()

    rescued = [rescuer.rescued]
    while await rescuer.act() == 0.0:
        rescued.append(rescuer.rescued)
    assert rescued == [2, 4, 5]
