"""The memory store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.store_contract import RETENTION, Harness, StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[Harness]:
        clock = ManualClock()
        harness = Harness(MemoryStore(clock, RETENTION), clock)
        yield harness
        await harness.close()
