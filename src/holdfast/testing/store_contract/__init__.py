"""The suite that every store passes: each promise of `holdfast.store`, as a test that could prove it wrong.

The author of a store writes

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[Harness]:
            clock = ManualClock()
            harness = Harness(MyStore(clock, RETENTION), clock)
            yield harness
            await harness.close()

and runs it with pytest and pytest-asyncio in auto mode. Each test gets an empty store. Time moves only when
a test moves it, so nothing here sleeps; what happens between store objects is given three seconds to arrive.
"""

# ruff: noqa: E402 - the tests must be imported after pytest has been told to explain their assertions

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{name}"
        for name in (
            "bounds",
            "breakers",
            "changes",
            "claim",
            "dead_letters",
            "enqueue",
            "explaining",
            "fairness",
            "harness",
            "keys",
            "lifetime",
            "limits",
            "lines",
            "progress",
            "prune",
            "queues",
            "reading",
            "schedules",
            "settle",
            "steering",
            "tick",
            "trains",
            "transactions",
            "workers",
        )
    )
)

from holdfast.testing.store_contract.bounds import BoundContract
from holdfast.testing.store_contract.breakers import BreakerContract
from holdfast.testing.store_contract.changes import ChangeContract
from holdfast.testing.store_contract.claim import ClaimContract
from holdfast.testing.store_contract.dead_letters import DeadLetterContract
from holdfast.testing.store_contract.enqueue import EnqueueContract
from holdfast.testing.store_contract.explaining import ExplainingContract
from holdfast.testing.store_contract.fairness import FairnessContract
from holdfast.testing.store_contract.harness import RETENTION, Harness, SyncConnection
from holdfast.testing.store_contract.keys import IdempotencyKeyContract, UniqueKeyContract
from holdfast.testing.store_contract.lifetime import CancellationContract, LifetimeContract
from holdfast.testing.store_contract.limits import LimitContract
from holdfast.testing.store_contract.lines import LineContract
from holdfast.testing.store_contract.progress import ProgressContract
from holdfast.testing.store_contract.prune import PruneContract
from holdfast.testing.store_contract.queues import QueueContract, TaskContract
from holdfast.testing.store_contract.reading import ReadingContract
from holdfast.testing.store_contract.schedules import ScheduleContract
from holdfast.testing.store_contract.settle import SettleContract
from holdfast.testing.store_contract.steering import SteeringContract
from holdfast.testing.store_contract.tick import TickContract
from holdfast.testing.store_contract.trains import TrainContract
from holdfast.testing.store_contract.transactions import TransactionContract
from holdfast.testing.store_contract.workers import WorkerContract

__all__ = ["StoreContract", "Harness", "SyncConnection", "RETENTION"]


class StoreContract(
    EnqueueContract,
    IdempotencyKeyContract,
    UniqueKeyContract,
    BoundContract,
    ClaimContract,
    SettleContract,
    LineContract,
    FairnessContract,
    TrainContract,
    TickContract,
    ProgressContract,
    SteeringContract,
    DeadLetterContract,
    PruneContract,
    WorkerContract,
    QueueContract,
    TaskContract,
    ScheduleContract,
    LimitContract,
    ExplainingContract,
    BreakerContract,
    ReadingContract,
    ChangeContract,
    LifetimeContract,
    CancellationContract,
    TransactionContract,
):
    """Every promise. Derive from it and give it a `harness` fixture."""

    @pytest.fixture
    async def harness(self) -> Harness:
        """A fresh, empty store; to be overridden."""
        raise NotImplementedError("Give your test class an async fixture `harness` that yields a Harness.")
