"""Dead letters that somebody must be told of: each is there until it was announced, and none is announced in vain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast.errors import InvalidOption
from holdfast.job import Delivery, JobState
from holdfast.lifecycle import Bury, Complete, GiveBack
from holdfast.store import Settlement
from holdfast.testing.store_contract.harness import FAILURE, Harness, ids_of, placeless

MINUTE = timedelta(minutes=1)


async def unannounced(harness: Harness, limit: int = 100) -> list[UUID]:
    return ids_of(await harness.store.unannounced(limit))


async def by_settling(harness: Harness) -> UUID:
    return await harness.dead()


async def by_settling_among_others(harness: Harness) -> UUID:
    buried, completed = await harness.start(), await harness.start()
    await harness.store.settle(
        [Settlement(buried.id, buried.token, Bury(FAILURE)), Settlement(completed.id, completed.token, Complete())]
    )
    return buried.id


async def by_expiring(harness: Harness) -> UUID:
    id = await harness.enqueue(expires_in=MINUTE)
    await harness.pass_time(2 * MINUTE)
    return id


async def by_being_lost(harness: Harness) -> UUID:
    worker = await harness.worker()
    claimed = await harness.start(worker, delivery=Delivery.AT_MOST_ONCE)
    [beat] = [sighting.beat for sighting in await harness.store.sightings() if sighting.worker == worker]
    await harness.store.rescue({worker: beat})
    return claimed.id


async def by_a_burial(harness: Harness) -> UUID:
    worker = await harness.worker()
    claimed = await harness.start(worker)
    await harness.store.bury_worker(worker, [Settlement(claimed.id, claimed.token, Bury(FAILURE))])
    return claimed.id


async def by_a_departure(harness: Harness) -> UUID:
    worker = await harness.worker()
    claimed = await harness.start(worker, delivery=Delivery.AT_MOST_ONCE)
    await harness.store.depart(worker)
    return claimed.id


WAYS = (by_settling, by_settling_among_others, by_expiring, by_being_lost, by_a_burial, by_a_departure)


class DeadLetterContract:
    @pytest.mark.parametrize("die", WAYS)
    async def test_whoever_goes_dead_is_announced_once(
        self, harness: Harness, die: Callable[[Harness], Awaitable[UUID]]
    ) -> None:
        id = await die(harness)
        [dead] = await harness.store.unannounced(100)
        assert placeless(dead) == placeless(await harness.record(id))
        assert dead.state is JobState.DEAD
        assert await unannounced(harness) == [id], "to look at it does not announce it"
        before = await harness.snapshot([id])
        await harness.store.announced([(id, dead.generation)])
        assert await unannounced(harness) == []
        assert await harness.snapshot([id]) == before

    async def test_only_dead_letters_are_announced(self, harness: Harness) -> None:
        ids = await harness.in_every_state()
        assert await unannounced(harness) == [ids["dead"]]

    async def test_who_went_dead_first_is_announced_first(self, harness: Harness) -> None:
        early, late = await harness.start(), await harness.start()
        await harness.settle(late, Bury(FAILURE))
        harness.clock.advance(MINUTE)
        await harness.settle(early, Bury(FAILURE))
        latest = await harness.dead()
        assert early.id < late.id < latest
        assert await unannounced(harness) == [late.id, early.id, latest]
        assert await unannounced(harness, limit=2) == [late.id, early.id]

    async def test_a_retried_job_needs_no_announcement_until_it_goes_dead_again(self, harness: Harness) -> None:
        id = await harness.dead()
        await harness.store.retry([id])
        assert await unannounced(harness) == []
        [again] = await harness.claim(queue=(await harness.record(id)).queue)
        await harness.settle(again, GiveBack(is_charged=True, failure=FAILURE))
        assert await unannounced(harness) == []
        [again] = await harness.claim(queue=again.queue)
        await harness.settle(again, Bury(FAILURE))
        [dead] = await harness.store.unannounced(100)
        assert (dead.id, dead.generation) == (id, 1)

    async def test_an_announcement_of_an_earlier_death_leaves_the_mark_of_the_next(self, harness: Harness) -> None:
        id = await harness.dead()
        await harness.store.retry([id])
        [again] = await harness.claim(queue=(await harness.record(id)).queue)
        await harness.settle(again, Bury(FAILURE))
        await harness.store.announced([(id, 0)])
        assert await unannounced(harness) == [id]
        await harness.store.announced([(id, 1), (id, 0), (id, 1)])
        assert await unannounced(harness) == []

    async def test_an_announcement_of_what_is_not_there_or_not_dead_does_no_harm(self, harness: Harness) -> None:
        ids = await harness.in_every_state()
        before = await harness.snapshot(ids.values())
        others = [(id, 0) for state, id in ids.items() if state != "dead"]
        await harness.store.announced([*others, (uuid4(), 0)])
        await harness.store.announced([])
        assert await harness.snapshot(ids.values()) == before
        assert await unannounced(harness) == [ids["dead"]]

    async def test_a_dead_letter_that_is_discarded_or_pruned_needs_no_announcement(self, harness: Harness) -> None:
        discarded, pruned = await harness.dead(), await harness.dead()
        await harness.store.discard([discarded])
        assert await unannounced(harness) == [pruned]
        harness.clock.advance(MINUTE)
        assert (await harness.store.prune(dead_before=harness.clock.now())).jobs == 1
        assert await unannounced(harness) == []

    async def test_many_dead_letters_are_announced_in_batches(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(1_200)
        claimed = await harness.claim(demand=1_200)
        await harness.store.settle([Settlement(job.id, job.token, Bury(FAILURE)) for job in claimed])
        told: list[UUID] = []
        while dead := await harness.store.unannounced(500):
            told += ids_of(dead)
            await harness.store.announced([(job.id, job.generation) for job in dead])
        assert sorted(told) == sorted(ids)

    @pytest.mark.parametrize("limit", [0, -1, 1_001])
    async def test_a_limit_that_makes_no_sense_is_refused(self, harness: Harness, limit: int) -> None:
        with pytest.raises(InvalidOption, match="limit must be"):
            await harness.store.unannounced(limit)
