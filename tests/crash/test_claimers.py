"""Processes that claim without a rest pass no limit and keep every order, also when they are killed while they do."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.ids import Ids
from holdfast.job import NewJob
from holdfast.store import Store
from tests.crash.checker import Fate, check
from tests.crash.nursery import Actor, Nursery
from tests.crash.rounds import rounds
from tests.crash.scheduling import open_at
from tests.crash.traffic_checker import Bounds, LimitBound
from tests.worker.database import LIMITED_DATABASES
from tests.worker.history import KILL, History
from tests.worker.program import until

MOST = 2


@pytest.fixture(params=LIMITED_DATABASES)
def url(request: pytest.FixtureRequest, path: Path) -> str:
    return f"sqlite:///{path}" if request.param == "sqlite" else request.getfixturevalue("migrated_database")


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history")


async def fill(store: Store, number: int) -> dict[UUID, Bounds]:
    """Jobs under a limit, in an order, and under both with a tenant; and what each of them is under."""
    ids, chance = Ids(), random.Random("fill")
    bounds: dict[UUID, Bounds] = {}
    jobs: list[NewJob] = []
    for each in range(number):
        key = chance.choice("abc")
        limit, order = GateRule(GateKind.LIMIT, "t", key, MOST), GateRule(GateKind.ORDER, "t", key + "xyz"[each % 3])
        tenant = GateRule(GateKind.FAIR, "", key)
        gates = chance.choice([(limit,), (order,), (limit, order, tenant)])
        # The same order key with other gates beside it is another line: these are only told to be one at a time.
        order = GateRule(GateKind.ORDER, "both" if len(gates) > 1 else "alone", order.key, most=5)
        gates = tuple(order if gate.kind is GateKind.ORDER else gate for gate in gates)
        job = NewJob(ids.make(), "t", "default", "{}", max_attempts=5, line=LineRule(gates))
        jobs.append(job)
        bounds[job.id] = Bounds(
            LimitBound(key, MOST) if limit in gates else None,
            order=f"{order.name} {order.key}" if order in gates else None,
        )
    await store.enqueue(jobs)
    return bounds


class Claimers:
    """Those that are alive."""

    def __init__(self, nursery: Nursery, stack: ExitStack, url: str, history: History) -> None:
        self._nursery = nursery
        self._stack = stack
        self._url = url
        self._history = history
        self._workers: dict[int, UUID] = {}
        self.alive: list[Actor] = []

    def start(self) -> None:
        worker = uuid4()
        options = {"url": self._url, "history": self._history.path, "worker": worker, "seed": worker.hex}
        actor = self._stack.enter_context(self._nursery.start("claim_in_lines", **options))
        self._workers[actor.pid] = worker
        self.alive.append(actor)

    async def kill(self, store: Store, actor: Actor) -> None:
        """Its places are free when the store has freed them, and not before."""
        self.alive.remove(actor)
        actor.kill()
        # Not before: until it is dead, it may write down that it has claimed something.
        self._history.write(KILL, pid=actor.pid, note=Fate.CHILD)
        await store.bury_worker(self._workers[actor.pid])

    def wait(self) -> None:
        for actor in self.alive:
            actor.hear("ready")
            actor.hear("finished", 60.0)


async def check_all(store: Store, history: History, bounds: dict[UUID, Bounds]) -> None:
    findings = check(bounds, await store.get(list(bounds)), history.read(), bounds)
    assert findings.broken == {}
    assert findings.jobs == len(bounds)


async def test_claimers_that_race_pass_no_limit_and_keep_every_order(
    nursery: Nursery, url: str, history: History
) -> None:
    store = open_at(url, None)
    bounds = await fill(store, rounds(150))
    with ExitStack() as stack:
        claimers = Claimers(nursery, stack, url, history)
        for _ in range(4):
            claimers.start()
        claimers.wait()
    await check_all(store, history, bounds)
    await store.close()


async def test_claimers_that_are_killed_keep_nothing_from_the_others(
    nursery: Nursery, url: str, history: History
) -> None:
    store, chance = open_at(url, None), random.Random()
    bounds = await fill(store, rounds(150))
    with ExitStack() as stack:
        claimers = Claimers(nursery, stack, url, history)
        for _ in range(3):
            claimers.start()
        for kill in range(rounds(4)):
            goal = (kill + 1) * 12
            until(lambda goal=goal: len(history.read("end")) >= goal, "some work")  # type: ignore[misc]
            await claimers.kill(store, chance.choice(claimers.alive))
            claimers.start()
        claimers.wait()
    await check_all(store, history, bounds)
    await store.close()
