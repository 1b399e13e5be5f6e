"""Transactions: a job that is enqueued in the caller's transaction exists if and only if that commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.errors import IdempotencyConflict, QueueFull, WrongDatabase
from holdfast.store import Enqueued, Filter
from holdfast.testing.store_contract.harness import Harness, SyncConnection, ids_of


@contextmanager
def connected(harness: Harness) -> Iterator[SyncConnection]:
    if harness.connect is None:
        pytest.skip("this store has no connections that a caller could share")
    connection = harness.connect()
    try:
        yield connection
    finally:
        connection.close()


class TransactionContract:
    async def test_jobs_exist_once_the_caller_has_committed(self, harness: Harness) -> None:
        await harness.store.open()
        with connected(harness) as tx:
            jobs = [harness.new({"a": 1}, tags=("x",)), harness.new(idempotency_key="k")]
            assert harness.store.enqueue_in(tx, jobs) == [Enqueued(job.id) for job in jobs]
            assert await harness.store.count(Filter()) == 0
            tx.commit()
        assert ids_of(await harness.claim(demand=5)) == [job.id for job in jobs]
        assert await harness.enqueue(idempotency_key="k") == jobs[1].id
        await harness.check_counters()

    async def test_jobs_do_not_exist_when_the_caller_rolls_back(self, harness: Harness) -> None:
        await harness.store.open()
        with connected(harness) as tx:
            harness.store.enqueue_in(tx, [harness.new(), harness.new(idempotency_key="k")])
            tx.rollback()
        assert await harness.store.count(Filter()) == 0
        fresh = harness.new(idempotency_key="k")
        assert await harness.store.enqueue([fresh]) == [Enqueued(fresh.id)]
        await harness.check_counters()

    async def test_a_refusal_leaves_the_transaction_usable(self, harness: Harness) -> None:
        await harness.store.set_bound("small", 1)
        taken = await harness.enqueue({"a": 1}, idempotency_key="k")
        with connected(harness) as tx:
            before, after = harness.new(), harness.new()
            harness.store.enqueue_in(tx, [before])
            with pytest.raises(QueueFull):
                harness.store.enqueue_in(tx, [harness.new(), *(harness.new(queue="small") for _ in range(2))])
            with pytest.raises(IdempotencyConflict):
                harness.store.enqueue_in(tx, [harness.new(), harness.new({"a": 2}, idempotency_key="k")])
            harness.store.enqueue_in(tx, [after])
            tx.commit()
        assert ids_of(await harness.claim(demand=9)) == [taken, before.id, after.id]
        assert await harness.store.count(Filter()) == 3
        await harness.check_counters()

    async def test_keys_are_found_in_a_transaction_too(self, harness: Harness) -> None:
        known = await harness.enqueue(idempotency_key="k")
        with connected(harness) as tx:
            new = harness.new(unique_key="u")
            answers = harness.store.enqueue_in(tx, [harness.new(idempotency_key="k"), new, harness.new(unique_key="u")])
            tx.commit()
        assert answers == [Enqueued(known, is_existing=True), Enqueued(new.id), Enqueued(new.id, is_existing=True)]

    async def test_the_async_verb_joins_the_caller_s_transaction_too(self, harness: Harness) -> None:
        await harness.store.open()
        with connected(harness) as tx:
            undone = harness.new()
            assert await harness.store.enqueue([undone], tx=tx) == [Enqueued(undone.id)]
            tx.rollback()
            kept = harness.new()
            assert await harness.store.enqueue([kept], tx=tx) == [Enqueued(kept.id)]
            assert await harness.store.count(Filter()) == 0
            tx.commit()
        assert ids_of(await harness.everything()) == [kept.id]

    async def test_what_is_no_connection_of_this_database_is_refused(self, harness: Harness) -> None:
        with pytest.raises(WrongDatabase):
            harness.store.enqueue_in(object(), [harness.new()])
        with pytest.raises(WrongDatabase):
            await harness.store.enqueue([harness.new()], tx=object())
        assert await harness.store.count(Filter()) == 0
