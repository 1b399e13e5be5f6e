"""The memory store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION, Harness, LimitContract, LineContract, StoreContract


class TestMemory(LimitContract, LineContract, StoreContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        clock = ManualClock()
        harness = Harness(MemoryStore(clock, RETENTION), clock)
        yield harness
        await harness.close()
