"""Reading: every job is found, once, by whatever is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast.errors import InvalidOption
from holdfast.job import JobState, NewJob
from holdfast.lifecycle import Bury, Complete, GiveBack
from holdfast.store import LARGEST_PAGE, LONGEST_HISTORY, Filter, Page
from holdfast.testing.store_contract.enqueue import HOSTILE
from holdfast.testing.store_contract.harness import FAILURE, SECOND, Harness, ids_of

MINUTE = timedelta(minutes=1)


class GetContract:
    async def test_jobs_come_in_the_order_asked_for(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(5)
        order = [ids[n] for n in (3, 0, 4, 1)]
        assert ids_of(await harness.store.get([order[0], uuid4(), *order[1:]])) == order

    async def test_nothing_asked_is_nothing_found(self, harness: Harness) -> None:
        await harness.enqueue()
        assert await harness.store.get([]) == []
        assert await harness.store.finished([]) == []

    async def test_finished_tells_only_of_final_states(self, harness: Harness) -> None:
        states = await harness.in_every_state()
        finished = await harness.store.finished([*states.values(), uuid4()])
        assert {job.id for job in finished} == {states["completed"], states["cancelled"], states["dead"]}
        assert finished == await harness.store.get(ids_of(finished))

    async def test_a_record_does_not_show_its_arguments_when_it_is_logged(self, harness: Harness) -> None:
        record = await harness.record(await harness.enqueue({"card": "4242"}))
        assert "4242" not in repr(record)


class PageContract:
    async def test_pages_are_complete_newest_first_and_without_doubles(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(25)
        for limit in (1, 7, 24, 25, 26, 1000):
            assert await self._walk(harness, limit) == ids[::-1], limit

    async def test_paging_goes_on_undisturbed_while_jobs_arrive(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(20)
        seen: list[UUID] = []
        page = await harness.store.page(Filter(), limit=6)
        while True:
            seen += ids_of(page.jobs)
            if page.next_cursor is None:
                break
            harness.clock.advance(0.01)
            await harness.enqueue_many(3)
            page = await harness.store.page(Filter(), page.next_cursor, limit=6)
        assert seen == ids[::-1]

    async def test_paging_goes_on_where_the_last_job_of_a_page_was_removed(self, harness: Harness) -> None:
        ids = [await harness.dead() for _ in range(6)]
        page = await harness.store.page(Filter(), limit=3)
        await harness.store.discard(ids_of(page.jobs))
        assert page.next_cursor is not None
        rest = await harness.store.page(Filter(), page.next_cursor, limit=3)
        assert ids_of(rest.jobs) == ids[2::-1]

    async def test_the_last_page_says_so_also_when_it_is_full(self, harness: Harness) -> None:
        ids = await harness.enqueue_many(4)
        first = await harness.store.page(Filter(), limit=2)
        assert first.next_cursor == ids[2]
        last = await harness.store.page(Filter(), first.next_cursor, limit=2)
        assert (ids_of(last.jobs), last.next_cursor) == ([ids[1], ids[0]], None)

    async def test_an_empty_store_has_one_empty_page(self, harness: Harness) -> None:
        assert await harness.store.page(Filter()) == Page([], None)

    async def test_pages_hold_the_same_records_as_get(self, harness: Harness) -> None:
        states = await harness.in_every_state()
        records = await harness.store.get(sorted(states.values(), reverse=True))
        assert (await harness.store.page(Filter())).jobs == records

    async def test_a_filtered_page_is_full_although_few_jobs_pass(self, harness: Harness) -> None:
        wanted = []
        for _ in range(8):
            await harness.enqueue_many(20)
            wanted.append(await harness.enqueue(tags=("rare",)))
        page = await harness.store.page(Filter(tags=("rare",)), limit=5)
        assert ids_of(page.jobs) == wanted[:2:-1]
        rest = await harness.store.page(Filter(tags=("rare",)), page.next_cursor, limit=5)
        assert (ids_of(rest.jobs), rest.next_cursor) == (wanted[2::-1], None)

    async def test_a_page_has_a_limit(self, harness: Harness) -> None:
        for limit in (0, -1, LARGEST_PAGE + 1, True):
            with pytest.raises(InvalidOption):
                await harness.store.page(Filter(), limit=limit)
        await harness.store.page(Filter(), limit=LARGEST_PAGE)

    async def _walk(self, harness: Harness, limit: int) -> list[UUID]:
        seen: list[UUID] = []
        cursor: UUID | None = None
        while True:
            page = await harness.store.page(Filter(), cursor, limit)
            assert len(page.jobs) <= limit
            seen += ids_of(page.jobs)
            if page.next_cursor is None:
                return seen
            assert len(page.jobs) == limit
            assert cursor is None or page.next_cursor < cursor, "paging does not get on"
            cursor = page.next_cursor


async def check_found(harness: Harness, filter: Filter, expected: set[UUID]) -> None:
    """Pages and count agree on what passes the filter."""
    found = await harness.everything(filter)
    assert {job.id for job in found} == expected, filter
    assert len(found) == len(expected), filter
    assert await harness.store.count(filter) == len(expected), filter
    small = await harness.store.page(filter, limit=2)
    assert ids_of(small.jobs) == sorted(expected, reverse=True)[:2], filter


class FilterContract:
    async def test_jobs_are_found_by_state(self, harness: Harness) -> None:
        states = await harness.in_every_state()
        by_state = {
            JobState.PENDING: {states["ready"], states["scheduled"], states["given back"]},
            JobState.RETRYING: {states["retrying"]},
            JobState.ACTIVE: {states["active"]},
            JobState.COMPLETED: {states["completed"]},
            JobState.CANCELLED: {states["cancelled"]},
            JobState.DEAD: {states["dead"]},
        }
        for state, expected in by_state.items():
            await check_found(harness, Filter(states=frozenset({state})), expected)
        pairs = {JobState.RETRYING, JobState.DEAD}
        await check_found(harness, Filter(states=frozenset(pairs)), {states["retrying"], states["dead"]})
        waiting = {JobState.PENDING, JobState.RETRYING}
        await check_found(harness, Filter(states=frozenset(waiting)), by_state[JobState.PENDING] | {states["retrying"]})
        await check_found(harness, Filter(), set(states.values()))
        await check_found(harness, Filter(states=frozenset(JobState)), set(states.values()))

    async def test_a_retry_that_is_ready_is_shown_as_retrying(self, harness: Harness) -> None:
        id = await harness.ended(GiveBack(is_charged=True, failure=FAILURE))
        await check_found(harness, Filter(states=frozenset({JobState.RETRYING})), {id})
        await check_found(harness, Filter(states=frozenset({JobState.PENDING})), set())

    async def test_jobs_are_found_by_queue_and_by_task(self, harness: Harness) -> None:
        ids = {
            (queue, task): await harness.enqueue(queue=queue, task=task)
            for queue in ("a", "a%", "A")
            for task in ("x", "x_", "'")
        }
        for name in ("a", "a%", "A", "%", ""):
            await check_found(harness, Filter(queue=name), {id for (queue, _), id in ids.items() if queue == name})
        for name in ("x", "x_", "'", "_"):
            await check_found(harness, Filter(task=name), {id for (_, task), id in ids.items() if task == name})
        await check_found(harness, Filter(queue="a%", task="x_"), {ids["a%", "x_"]})

    async def test_all_tags_asked_for_must_be_there(self, harness: Harness) -> None:
        one, two = await harness.enqueue(tags=("a",)), await harness.enqueue(tags=("b", "a", "c"))
        await harness.enqueue()
        await check_found(harness, Filter(tags=("a",)), {one, two})
        await check_found(harness, Filter(tags=("a", "b")), {two})
        await check_found(harness, Filter(tags=("c", "b", "b")), {two})
        await check_found(harness, Filter(tags=("d",)), set())
        await check_found(harness, Filter(tags=("a,b",)), set())

    async def test_hostile_tags_are_found_exactly(self, harness: Harness) -> None:
        ids = {tag: await harness.enqueue(tags=(tag,)) for tag in HOSTILE}
        for tag, id in ids.items():
            await check_found(harness, Filter(tags=(tag,)), {id})
        for tag in ("%", "_", "'", '"', "50%", "X" * 10_000):
            await check_found(harness, Filter(tags=(tag,)), set())

    async def test_jobs_are_found_by_the_time_of_their_enqueue(self, harness: Harness) -> None:
        start = harness.clock.now()
        ids = []
        for _ in range(3):
            ids.append(await harness.enqueue())
            harness.clock.advance(MINUTE)
        second = start + MINUTE
        await check_found(harness, Filter(created_from=second), set(ids[1:]))
        await check_found(harness, Filter(created_before=second), {ids[0]})
        await check_found(harness, Filter(created_from=second, created_before=second + MINUTE), {ids[1]})
        tick = timedelta(microseconds=1)
        await check_found(harness, Filter(created_from=second + tick), {ids[2]})
        await check_found(harness, Filter(created_before=second + tick), set(ids[:2]))

    async def test_jobs_are_found_by_the_time_of_their_end(self, harness: Harness) -> None:
        await harness.enqueue()
        await harness.start()
        completed = await harness.completed()
        harness.clock.advance(MINUTE)
        dead = await harness.dead()
        end = harness.clock.now()
        await check_found(harness, Filter(finished_before=end), {completed})
        await check_found(harness, Filter(finished_before=end + SECOND), {completed, dead})
        await check_found(harness, Filter(finished_before=end - MINUTE), set())

    async def test_jobs_are_found_by_the_type_of_their_error(self, harness: Harness) -> None:
        dead, retrying = await harness.dead(), await harness.ended(GiveBack(MINUTE, is_charged=True, failure=FAILURE))
        await harness.completed()
        expired = await harness.enqueue(expires_in=SECOND)
        await harness.pass_time(SECOND)
        await check_found(harness, Filter(error_type=FAILURE.error_type), {dead, retrying})
        await check_found(harness, Filter(error_type="Expired"), {expired})
        await check_found(harness, Filter(error_type="shop%"), set())

    async def test_everything_given_must_hold(self, harness: Harness) -> None:
        match = {"queue": "q", "task": "t", "tags": ("x", "y")}
        wanted = await harness.dead(args={"tenant": "acme"}, **match)
        await harness.dead(args={"tenant": "other"}, **match)
        await harness.dead(args={"tenant": "acme"}, **{**match, "tags": ("x",)})
        await harness.dead(args={"tenant": "acme"}, **{**match, "task": "other"})
        await harness.dead(args={"tenant": "acme"}, **{**match, "queue": "other"})
        await harness.enqueue({"tenant": "acme"}, **match)
        now = harness.clock.now()
        filter = Filter(
            states=frozenset({JobState.DEAD}),
            queue="q",
            task="t",
            tags=("x", "y"),
            args={"tenant": "acme"},
            created_from=now,
            created_before=now + SECOND,
            finished_before=now + SECOND,
            error_type=FAILURE.error_type,
        )
        await check_found(harness, filter, {wanted})


class ArgumentFilterContract:
    async def test_values_are_compared_with_their_type(self, harness: Harness) -> None:
        values: list[str | int | float | bool | None] = [
            1,
            0,
            -1,
            2.5,
            True,
            False,
            None,
            "1",
            "0",
            "true",
            "null",
            "",
            "2.5",
            "1.0",
            2**53,
            2**53 + 1,
            -(2**63),
            1e300,
        ]
        ids = [await harness.enqueue({"value": value}) for value in values]
        await harness.enqueue({"other": 1})
        await harness.enqueue({"value": [1]})
        await harness.enqueue({"value": {"value": 1}})
        for value, id in zip(values, ids, strict=True):
            await check_found(harness, Filter(args={"value": value}), {id})

    async def test_null_is_not_the_same_as_not_there(self, harness: Harness) -> None:
        null = await harness.enqueue({"a": None})
        await harness.enqueue({})
        await harness.enqueue({"a": {}})
        await check_found(harness, Filter(args={"a": None}), {null})
        await check_found(harness, Filter(args={"a.b": None}), set())

    async def test_dotted_names_lead_inside(self, harness: Harness) -> None:
        deep = await harness.enqueue({"order": {"customer": {"id": 7, "name": "Ann"}}})
        await harness.enqueue({"order": {"customer": {"id": 8}}})
        await harness.enqueue({"order": 7})
        await harness.enqueue({"order": "customer"})
        await harness.enqueue({"order": [{"customer": {"id": 7}}]})
        await harness.enqueue({"order.customer.id": 7})
        await check_found(harness, Filter(args={"order.customer.id": 7}), {deep})
        await check_found(harness, Filter(args={"order.customer.id": 7, "order.customer.name": "Ann"}), {deep})
        await check_found(harness, Filter(args={"order.customer.id": 7, "order.customer.name": "Bob"}), set())

    async def test_hostile_values_are_found_exactly(self, harness: Harness) -> None:
        ids = {text: await harness.enqueue({"text": text}) for text in HOSTILE}
        for text, id in ids.items():
            await check_found(harness, Filter(args={"text": text}), {id})
        for text in ("%", "_", "50%", "' or 1=1 --"):
            await check_found(harness, Filter(args={"text": text}), set())

    async def test_names_that_are_no_names_are_refused(self, harness: Harness) -> None:
        await harness.enqueue({"a": 1})
        for name in ("", ".", "a.", ".a", "a..b", "a b", "a'", 'a"', "$.a", "a[0]", "a->b", "a;", "é" * 201, "a\n"):
            with pytest.raises(InvalidOption):
                await harness.store.page(Filter(args={name: 1}))
            with pytest.raises(InvalidOption):
                await harness.store.count(Filter(args={name: 1}))

    async def test_names_are_checked_also_when_there_is_no_job(self, harness: Harness) -> None:
        with pytest.raises(InvalidOption):
            await harness.store.page(Filter(args={"a'": 1}))
        with pytest.raises(InvalidOption):
            await harness.store.count(Filter(args={"a'": 1}))

    async def test_numbers_beyond_64_bits_are_refused(self, harness: Harness) -> None:
        await harness.enqueue({"a": 1})
        for number in (2**63, -(2**63) - 1, 10**30):
            with pytest.raises(InvalidOption):
                await harness.store.page(Filter(args={"a": number}))

    async def test_strange_payloads_do_not_disturb_a_filter(self, harness: Harness) -> None:
        id = await harness.enqueue({"a": 1})
        for text in ('{"b":"\\u0000"}', '{"a":123456789012345678901234567890}', '{"a":[[[[1]]]]}', '{"":1}'):
            await harness.store.enqueue([NewJob(harness.ids.make(), "task", "default", text)])
        await check_found(harness, Filter(args={"a": 1}), {id})

    async def test_arguments_that_cannot_be_read_match_nothing(self, harness: Harness) -> None:
        wanted: Mapping[str, str | int | None] = {"text": "a", "number": 1, "none": None, "truth": True}
        ids = {name: await harness.enqueue({name: value}) for name, value in wanted.items()}
        await harness.enqueue({"text": "b", "number": 2, "none": 0, "truth": False})
        unreadable = ("not json", "[1]", "", '"text"', '{"text":', '{"text":"a"', '{"text":"\\ud800"}')
        await harness.store.enqueue([NewJob(harness.ids.make(), "task", "default", text) for text in unreadable])
        for name, value in wanted.items():
            await check_found(harness, Filter(args={name: value}), {ids[name]})

    async def test_a_whole_number_is_found_by_its_float(self, harness: Harness) -> None:
        wanted: Mapping[str, float] = {"a": 3.0}
        id = await harness.enqueue({"a": 3})
        await check_found(harness, Filter(args=wanted), {id})


class AttemptContract:
    async def test_a_job_that_never_ran_has_no_attempts(self, harness: Harness) -> None:
        assert await harness.store.attempts(await harness.enqueue()) == []
        assert await harness.store.attempts(uuid4()) == []

    async def test_the_run_under_way_is_an_attempt_without_an_end(self, harness: Harness) -> None:
        worker = await harness.worker()
        claimed = await harness.start(worker)
        [attempt] = await harness.store.attempts(claimed.id)
        assert (attempt.run, attempt.started_at, attempt.ended_at) == (1, harness.clock.now(), None)
        assert (attempt.worker, attempt.failure) == (worker, None)

    async def test_every_attempt_says_who_when_and_what(self, harness: Harness) -> None:
        id = await harness.enqueue()
        times = []
        for _ in range(3):
            worker = await harness.worker()
            [claimed] = await harness.claim(worker)
            started = harness.clock.now()
            harness.clock.advance(2)
            await harness.settle(claimed, GiveBack(is_charged=True, failure=FAILURE))
            times.append((worker, started, harness.clock.now()))
        attempts = await harness.store.attempts(id)
        assert [(attempt.worker, attempt.started_at, attempt.ended_at) for attempt in attempts] == times
        assert [attempt.run for attempt in attempts] == [1, 2, 3]
        assert {attempt.failure for attempt in attempts} == {FAILURE}

    async def test_the_oldest_attempts_are_forgotten_first(self, harness: Harness) -> None:
        id, other = await harness.enqueue(max_attempts=1000), await harness.dead()
        worker = await harness.worker()
        for _ in range(LONGEST_HISTORY + 5):
            [claimed] = await harness.claim(worker)
            harness.clock.advance(1)
            await harness.settle(claimed, GiveBack(is_charged=True, failure=FAILURE))
        attempts = await harness.store.attempts(id)
        assert [attempt.run for attempt in attempts] == list(range(6, LONGEST_HISTORY + 6))
        assert len(await harness.store.attempts(other)) == 1

    async def test_a_job_s_attempts_are_its_own(self, harness: Harness) -> None:
        one, two = await harness.dead(), await harness.ended(Bury(FAILURE))
        done = await harness.ended(Complete())
        assert [len(await harness.store.attempts(id)) for id in (one, two, done)] == [1, 1, 1]


class ReadingContract(GetContract, PageContract, FilterContract, ArgumentFilterContract, AttemptContract):
    """What can be read, and how it is found."""
