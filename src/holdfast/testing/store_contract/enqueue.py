"""Enqueue: what is handed over is there, whole, once, and as it was given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest

from holdfast import lifecycle
from holdfast.errors import IdempotencyConflict, InvalidOption
from holdfast.job import Delivery, NewJob, Stage
from holdfast.lifecycle import Complete
from holdfast.store import LARGEST_BATCH, Enqueued, Filter
from holdfast.testing.store_contract.harness import Harness, ids_of, placeless

HOSTILE = (
    'it\'s "quoted" `twice`',
    "'; drop table jobs; --",
    "50%_off\\%\\_",
    "$1 ?1 :name %s {0} ${x}",
    "two\nlines\r\nand\ta tab",
    "naïve ⟨Ωμέγα⟩ 漢字",
    "👩‍👩‍👧‍👦 🏴‍☠️ 🇫🇷",
    "\u202eright to left\u202c עברית العربية",
    '[1, {"a": null}]',
    "null",
    "\\u0000 \\n \\",
    "<script>alert(1)</script> & &amp;",
    "  spaces around  ",
    "",
    "x" * 10_000,
)


class EnqueueContract:
    async def test_an_enqueued_job_is_there_with_all_it_was_given(self, harness: Harness) -> None:
        harness.clock.advance(0.123457)
        new = harness.new(
            {"order": 17},
            task="shop.charge",
            queue="billing",
            priority=8,
            max_attempts=3,
            delivery=Delivery.AT_MOST_ONCE,
            delay=timedelta(seconds=90.000001),
            expires_in=timedelta(minutes=5),
            idempotency_key="charge:17",
            unique_key="17",
            unique_window=timedelta(minutes=1),
            tags=("vip", "eu"),
            context_json='{"trace":"abc"}',
        )
        assert await harness.store.enqueue([new]) == [Enqueued(new.id, is_existing=False)]
        assert placeless(await harness.record(new.id)) == lifecycle.admit(new, harness.clock.now())

    async def test_a_plain_job_takes_the_defaults(self, harness: Harness) -> None:
        new = NewJob(harness.ids.make(), "task", "default", "{}")
        await harness.store.enqueue([new])
        assert placeless(await harness.record(new.id)) == lifecycle.admit(new, harness.clock.now())

    async def test_every_kind_of_delivery_is_kept(self, harness: Harness) -> None:
        for delivery in Delivery:
            assert (await harness.record(await harness.enqueue(delivery=delivery))).delivery is delivery

    async def test_answers_stand_in_the_order_of_the_jobs(self, harness: Harness) -> None:
        known = await harness.enqueue(idempotency_key="known")
        jobs = [
            harness.new(),
            harness.new(idempotency_key="known"),
            harness.new(),
            harness.new(delay=timedelta(hours=1)),
        ]
        answers = await harness.store.enqueue(jobs)
        assert answers == [
            Enqueued(jobs[0].id),
            Enqueued(known, is_existing=True),
            Enqueued(jobs[2].id),
            Enqueued(jobs[3].id),
        ]

    async def test_jobs_of_one_batch_become_ready_in_its_order(self, harness: Harness) -> None:
        jobs = [harness.new() for _ in range(20)]
        jobs.reverse()  # so that the order of the ids is not the order of the batch
        await harness.store.enqueue(jobs)
        assert ids_of(await harness.claim(demand=20)) == [job.id for job in jobs]

    async def test_a_batch_may_mix_queues_and_tasks(self, harness: Harness) -> None:
        jobs = [harness.new(queue=queue, task=task) for queue in ("a", "b") for task in ("x", "y")]
        await harness.store.enqueue(jobs)
        found = await harness.store.get([job.id for job in jobs])
        assert [(job.queue, job.task) for job in found] == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]

    async def test_an_empty_batch_is_nothing_to_do(self, harness: Harness) -> None:
        assert await harness.store.enqueue([]) == []
        assert await harness.store.count(Filter()) == 0

    async def test_the_largest_batch_is_accepted(self, harness: Harness) -> None:
        answers = await harness.store.enqueue([harness.new() for _ in range(LARGEST_BATCH)])
        assert len({answer.id for answer in answers}) == LARGEST_BATCH
        assert (await harness.queue()).waiting == LARGEST_BATCH

    async def test_a_batch_beyond_the_largest_is_refused_whole(self, harness: Harness) -> None:
        with pytest.raises(InvalidOption):
            await harness.store.enqueue([harness.new() for _ in range(LARGEST_BATCH + 1)])
        assert await harness.store.count(Filter()) == 0

    async def test_one_conflict_refuses_the_whole_batch(self, harness: Harness) -> None:
        await harness.enqueue({"cents": 1}, idempotency_key="taken")
        jobs = [
            harness.new(),
            harness.new(idempotency_key="fresh"),
            harness.new(unique_key="fresh"),
            harness.new({"cents": 2}, idempotency_key="taken"),
            harness.new(),
        ]
        with pytest.raises(IdempotencyConflict):
            await harness.store.enqueue(jobs)
        assert await harness.store.get([job.id for job in jobs]) == []
        assert (await harness.queue()).waiting == 1
        # Nor did the refused batch take its keys.
        again = await harness.store.enqueue([harness.new(idempotency_key="fresh"), harness.new(unique_key="fresh")])
        assert [answer.is_existing for answer in again] == [False, False]

    # ── the same id again ────────────────────────────────────────────────────────────────────────────────────────

    async def test_repeating_an_id_finds_the_job_and_adds_none(self, harness: Harness) -> None:
        new = harness.new({"a": 1}, is_repeat=True)
        assert await harness.store.enqueue([new]) == [Enqueued(new.id, is_existing=False)]
        assert await harness.store.enqueue([new]) == [Enqueued(new.id, is_existing=True)]
        assert await harness.store.count(Filter()) == 1
        assert (await harness.queue()).waiting == 1

    async def test_repeating_a_whole_batch_finds_all_of_it(self, harness: Harness) -> None:
        jobs = [
            harness.new(is_repeat=True),
            harness.new(is_repeat=True, idempotency_key="k"),
            harness.new(is_repeat=True, unique_key="u"),
            harness.new(is_repeat=True, delay=timedelta(hours=1)),
        ]
        await harness.store.enqueue(jobs)
        assert await harness.store.enqueue(jobs) == [Enqueued(job.id, is_existing=True) for job in jobs]
        assert await harness.store.count(Filter()) == 4
        await harness.check_counters()

    async def test_repeating_the_id_of_a_job_that_is_done_does_not_revive_it(self, harness: Harness) -> None:
        new = harness.new(is_repeat=True)
        await harness.store.enqueue([new])
        [claimed] = await harness.claim()
        await harness.settle(claimed, Complete('"done"'))
        before = await harness.record(new.id)
        assert await harness.store.enqueue([new]) == [Enqueued(new.id, is_existing=True)]
        assert await harness.record(new.id) == before

    async def test_an_id_repeated_inside_one_batch_is_one_job(self, harness: Harness) -> None:
        new = harness.new(is_repeat=True)
        assert await harness.store.enqueue([new, new]) == [Enqueued(new.id), Enqueued(new.id, is_existing=True)]
        assert await harness.store.count(Filter()) == 1

    async def test_an_id_with_other_arguments_is_a_conflict(self, harness: Harness) -> None:
        new = harness.new({"cents": 1}, is_repeat=True)
        await harness.store.enqueue([new])
        before = await harness.record(new.id)
        with pytest.raises(IdempotencyConflict) as conflict:
            await harness.store.enqueue([harness.new({"cents": 2}, id=new.id, is_repeat=True)])
        assert conflict.value.existing == new.id
        with pytest.raises(IdempotencyConflict):
            await harness.store.enqueue([harness.new({"cents": 1}, id=new.id, is_repeat=True, task="other")])
        assert await harness.record(new.id) == before

    async def test_a_repeated_id_needs_no_room(self, harness: Harness) -> None:
        await harness.store.set_bound("default", 1)
        new = harness.new(is_repeat=True)
        await harness.store.enqueue([new])
        assert await harness.store.enqueue([new]) == [Enqueued(new.id, is_existing=True)]

    # ── when it is due ───────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_delay_is_counted_from_the_store_s_now(self, harness: Harness) -> None:
        record = await harness.record(await harness.enqueue(delay=timedelta(seconds=30)))
        assert (record.stage, record.due_at) == (Stage.SCHEDULED, harness.clock.now() + timedelta(seconds=30))

    async def test_no_delay_is_ready_at_once(self, harness: Harness) -> None:
        record = await harness.record(await harness.enqueue(delay=timedelta(0)))
        assert (record.stage, record.due_at) == (Stage.READY, harness.clock.now())

    async def test_a_job_can_be_due_at_a_time_in_any_zone(self, harness: Harness) -> None:
        at = (harness.clock.now() + timedelta(hours=3)).astimezone(timezone(timedelta(hours=5, minutes=30)))
        record = await harness.record(await harness.enqueue(at=at))
        assert (record.stage, record.due_at) == (Stage.SCHEDULED, at)
        assert record.due_at.utcoffset() is not None

    async def test_a_time_in_the_past_is_now(self, harness: Harness) -> None:
        record = await harness.record(await harness.enqueue(at=datetime(2001, 1, 1, tzinfo=UTC)))
        assert (record.stage, record.due_at) == (Stage.READY, harness.clock.now())

    async def test_expiry_is_counted_from_when_the_job_is_due(self, harness: Harness) -> None:
        hour = timedelta(hours=1)
        at_once = await harness.record(await harness.enqueue(expires_in=hour))
        delayed = await harness.record(await harness.enqueue(expires_in=hour, delay=2 * hour))
        assert at_once.expires_at == harness.clock.now() + hour
        assert delayed.expires_at == harness.clock.now() + 3 * hour

    async def test_an_expiry_can_be_a_point_in_time(self, harness: Harness) -> None:
        end = harness.clock.now() + timedelta(days=400, microseconds=1)
        assert (await harness.record(await harness.enqueue(expires_at=end))).expires_at == end

    async def test_all_times_of_a_record_know_their_zone(self, harness: Harness) -> None:
        id = await harness.completed(expires_in=timedelta(hours=9))
        record = await harness.record(id)
        times = (record.created_at, record.due_at, record.started_at, record.finished_at, record.expires_at)
        assert all(time is not None and time.utcoffset() == timedelta(0) for time in times)

    # ── every text comes back as it was ──────────────────────────────────────────────────────────────────────────

    async def test_hostile_texts_come_back_as_they_were(self, harness: Harness) -> None:
        context = harness.new({"hostile": HOSTILE}).args_json
        for text in HOSTILE:
            new = harness.new({"text": text, text: "a name"}, tags=(text, *HOSTILE), context_json=context)
            await harness.store.enqueue([new])
            record = await harness.record(new.id)
            assert record.args == {"text": text, text: "a name"}
            assert (record.args_json, record.tags, record.context_json) == (new.args_json, new.tags, context)

    async def test_hostile_names_and_keys_come_back_as_they_were(self, harness: Harness) -> None:
        for text in (*HOSTILE[:9], "n" * 200):
            name = "".join(character for character in text if character.isprintable())
            options: dict[str, Any] = {"task": name, "queue": name, "idempotency_key": name, "unique_key": name}
            id = await harness.enqueue(**options)
            assert await harness.enqueue(**options) == id
            record = await harness.record(id)
            assert (record.task, record.queue) == (name, name)
            assert (record.idempotency_key, record.unique_key) == (name, name)
            assert (await harness.queue(name)).waiting == 1
            assert ids_of(await harness.claim(queue=name)) == [id]

    async def test_json_is_kept_as_text_to_the_letter(self, harness: Harness) -> None:
        for text in (
            '{"b": 1,   "a": 2}',
            '{"a":1.0,"b":1e2,"c":-0,"d":123456789012345678901234567890}',
            '{"a":"\\u0000","b":"\\u00e9é"}',
            '{"":{"":[]}}',
        ):
            new = harness.new(args=None)
            await harness.store.enqueue([NewJob(new.id, "task", "texts", text, context_json=text)])
            [claimed] = await harness.claim(queue="texts")
            assert (claimed.args_json, claimed.context_json) == (text, text)
            await harness.settle(claimed, Complete(text))
            record = await harness.record(new.id)
            assert (record.args_json, record.context_json, record.result_json) == (text, text, text)

    async def test_a_payload_of_the_largest_size_is_kept(self, harness: Harness) -> None:
        text = "é" * (128 * 1024)
        assert (await harness.record(await harness.enqueue({"text": text}))).args == {"text": text}

    async def test_a_job_nobody_enqueued_is_not_there(self, harness: Harness) -> None:
        assert await harness.store.get([uuid4()]) == []
