"""Jobs as a claim brings them, for tests that need no store."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from hypothesis import strategies as st

from holdfast.job import ClaimedJob, Delivery

_U32 = 2**32 - 1


def claimed_job(**facts: Any) -> ClaimedJob:
    """A job of which only what is said matters."""
    usual: dict[str, Any] = {
        "id": uuid4(),
        "token": uuid4(),
        "task": "t",
        "queue": "default",
        "priority": 5,
        "args_json": "{}",
        "attempt": 1,
        "max_attempts": 5,
        "runs": 1,
        "crashes": 0,
        "waits": 0,
        "pool_tries": 0,
        "edits": 0,
        "delivery": Delivery.AT_LEAST_ONCE,
        "created_microseconds": 0,
        "due_microseconds": 0,
        "idempotency_key": None,
        "has_unique_key": False,
        "context_json": None,
    }
    return ClaimedJob(**usual | facts)


tokens = st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))
"""Any but that of nobody: all zeros."""

jobs = st.builds(
    claimed_job,
    id=st.uuids(),
    token=tokens,
    attempt=st.integers(1, 1000),
    max_attempts=st.integers(1, 1000),
    crashes=st.integers(0, 3),
    waits=st.integers(0, _U32),
    pool_tries=st.integers(0, _U32),
    delivery=st.sampled_from(Delivery),
)
