"""Fairness: tenants take turns, whatever they had before, and priorities and plain jobs have their part."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from holdfast.gates import GateKind, GateRule, LineRule
from holdfast.lifecycle import Complete
from holdfast.store import Settlement
from holdfast.testing.store_contract.harness import Harness, ids_of
from holdfast.testing.store_contract.lines import limit, order, tenant, together

TRAIN = 20


async def work_off(harness: Harness, worker: UUID) -> None:
    """Until nothing is left in the default queue."""
    while claimed := await harness.claim(worker, demand=7):
        await harness.store.settle([Settlement(job.id, job.token, Complete(), is_lined=True) for job in claimed])


class FairnessContract:
    async def test_a_tenant_with_many_jobs_does_not_starve_one_with_few(self, harness: Harness) -> None:
        await harness.enqueue_many(100, line=tenant("large"))
        few = set(await harness.enqueue_many(5, line=tenant("small")))
        claimed = await harness.claim(demand=12)
        assert few <= set(ids_of(claimed))

    async def test_turns_go_on_from_one_claim_to_the_next(self, harness: Harness) -> None:
        await harness.enqueue_many(30, line=tenant("large"))
        few = set(await harness.enqueue_many(4, line=tenant("small")))
        await harness.enqueue_many(30, line=tenant("huge"))
        worker = await harness.worker()
        claimed = {job.id for _ in range(15) for job in await harness.claim(worker)}
        assert few <= claimed

    async def test_who_comes_later_does_not_make_up_for_what_he_has_not_used(self, harness: Harness) -> None:
        await harness.enqueue_many(60, line=tenant("early"))
        await harness.claim(demand=20)
        late = set(await harness.enqueue_many(20, line=tenant("late")))
        claimed = set(ids_of(await harness.claim(demand=20)))
        assert 9 <= len(claimed & late) <= 11

    async def test_many_lines_of_one_tenant_get_no_more_than_one_line_of_another(self, harness: Harness) -> None:
        for number in range(20):
            await harness.enqueue(line=together(tenant("large"), order(f"o{number}")))
        few = set(await harness.enqueue_many(4, line=tenant("small")))
        worker = await harness.worker()
        claimed = {job.id for _ in range(10) for job in await harness.claim(worker)}
        assert few <= claimed

    @pytest.mark.parametrize(("queue", "priority"), [("default", 5), ("other", 5), ("default", 3)])
    async def test_who_had_work_does_not_wait_for_who_had_none(
        self, harness: Harness, queue: str, priority: int
    ) -> None:
        """Once all is done, everybody begins anew, and what was done elsewhere counts there."""
        worker = await harness.worker()
        await harness.enqueue_many(40, line=tenant("early"))
        await work_off(harness, worker)
        await harness.enqueue_many(60, line=tenant("late"), queue=queue, priority=priority)
        mine = set(await harness.enqueue_many(5, line=tenant("early"), queue=queue, priority=priority))
        claimed = {job.id for _ in range(11) for job in await harness.claim(worker, queue=queue)}
        assert mine <= claimed

    async def test_who_was_at_work_alone_does_not_wait_for_who_was_parked_meanwhile(self, harness: Harness) -> None:
        """What somebody did not use is not made up for, also if it was his limit that kept him from it."""
        worker = await harness.worker()
        parked = together(tenant("parked"), limit(1, "parked"))
        await harness.enqueue_many(30, line=parked)
        [running] = await harness.claim(worker, demand=5)
        await harness.enqueue_many(50, line=tenant("other"))
        for _ in range(6):
            for job in await harness.claim(worker, demand=10):
                await harness.settle(job, Complete())
        await harness.enqueue(line=together(tenant("parked"), limit(100, "parked")))
        await harness.settle(running, Complete())
        await harness.claim(worker, demand=1)
        others = await harness.enqueue_many(5, line=tenant("other"))
        claimed = ids_of(await harness.claim(worker, demand=12))
        assert set(others) <= set(claimed), "they take turns"

    async def test_a_tenant_that_is_held_up_again_and_again_has_its_part(self, harness: Harness) -> None:
        """It takes one slot of two at the most, and gets that whenever it can."""
        worker = await harness.worker()
        held_up = set(await harness.enqueue_many(30, line=together(tenant("one"), order("k"))))
        await harness.enqueue_many(60, line=tenant("other"))
        ended: list[UUID] = []
        running = await harness.claim(worker, demand=2)
        while len(ended) < 40:
            first, *running = running
            await harness.settle(first, Complete())
            ended.append(first.id)
            running += await harness.claim(worker)
        assert 18 <= len(held_up.intersection(ended)) <= 22

    async def test_a_tenant_with_many_orders_gets_no_more_than_one_with_one(self, harness: Harness) -> None:
        """Also where several jobs of an order may be claimed together."""

        def train(name: str, key: str) -> LineRule:
            return together(tenant(name), LineRule((GateRule(GateKind.ORDER, "task", key, TRAIN),)))

        for number in range(10):
            await harness.enqueue_many(20, line=train("many", f"o{number}"))
        one = set(await harness.enqueue_many(50, line=train("one", "k")))
        worker = await harness.worker()
        claimed: list[UUID] = []
        while len(claimed) < 100:
            jobs = await harness.store.claim(worker, uuid4(), {"default": 3}, {"default": 3}, 9)
            await harness.store.settle([Settlement(job.id, job.token, Complete(), is_lined=True) for job in jobs])
            claimed += ids_of(jobs)
        assert 40 <= len(one.intersection(claimed[:100])) <= 60

    async def test_jobs_in_lines_and_others_share_the_slots(self, harness: Harness) -> None:
        plain = set(await harness.enqueue_many(20))
        await harness.enqueue_many(20, line=tenant("a"))
        claimed = set(ids_of(await harness.claim(demand=10)))
        assert len(claimed & plain) == 5
        rest = set(ids_of(await harness.claim(demand=100)))
        assert len(rest) == 30
        await harness.check_counters()

    async def test_if_one_slot_is_asked_for_each_kind_gets_its_turn(self, harness: Harness) -> None:
        plain = set(await harness.enqueue_many(60))
        await harness.enqueue_many(60, line=tenant("a"))
        worker = await harness.worker()
        claimed = [job.id for _ in range(60) for job in await harness.claim(worker)]
        assert 5 <= len(plain.intersection(claimed)) <= 55

    async def test_what_is_more_important_goes_first_in_lines_and_beside_them(self, harness: Harness) -> None:
        low = await harness.enqueue(line=tenant("a"), priority=1)
        plain = await harness.enqueue(priority=5)
        high = await harness.enqueue(line=tenant("a"), priority=8)
        top = await harness.enqueue(priority=9)
        assert ids_of(await harness.claim(demand=4)) == [top, high, plain, low]
