"""What a test can find out about jobs, and what it is told when it is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from holdfast import ConfigurationError, DeadJob, Holdfast, InvalidOption, InvalidPayload, Retry


@dataclass
class Order:
    id: int
    lines: list[str]


def test_a_call_is_found_however_it_is_written(hf: Holdfast) -> None:
    @hf.task
    def resize(url: str, size: int = 100, *, crop: bool = False) -> None: ...

    with hf.testing() as t:
        resize.enqueue("a")
        resize.enqueue(size=5, url="b", crop=True)
        t.assert_enqueued(resize, "a")
        t.assert_enqueued(resize, url="a")
        t.assert_enqueued(resize, "a", 100, crop=False)
        t.assert_enqueued(resize, "b", 5, crop=True)
        for url, size in (("a", 5), ("c", 100)):
            with pytest.raises(AssertionError):
                t.assert_enqueued(resize, url, size)


def test_arguments_are_compared_as_they_are_stored(hf: Holdfast) -> None:
    @hf.task
    def ship(order: Order, weights: set[int]) -> None: ...

    with hf.testing() as t:
        ship.enqueue(Order(1, ["a"]), {3, 1, 2})
        t.assert_enqueued(ship, Order(1, ["a"]), {2, 3, 1})
        with pytest.raises(AssertionError):
            t.assert_enqueued(ship, Order(1, ["b"]), {1, 2, 3})


def test_arguments_that_the_task_does_not_take_are_no_expectation(hf: Holdfast) -> None:
    @hf.task
    def resize(url: str) -> None: ...

    with hf.testing() as t, pytest.raises(InvalidPayload, match="url"):
        t.assert_enqueued(resize, 5)  # type: ignore[arg-type]


def test_a_job_counts_whatever_has_become_of_it(hf: Holdfast) -> None:
    @hf.task
    def nothing() -> None: ...

    @hf.task
    def parent() -> None:
        nothing.enqueue()

    with hf.testing() as t:
        parent.enqueue()
        t.assert_not_enqueued(nothing)
        t.run_all()
        assert t.assert_enqueued(nothing).state == "completed"


def test_what_is_found_tells_the_options(hf: Holdfast) -> None:
    @hf.task
    def remind(order: int) -> None: ...

    with hf.testing() as t:
        remind.options(delay="1h", queue="mail", priority="high", tags=["vip"]).enqueue(1)
        found = t.assert_enqueued(remind, 1)
        assert (found.queue, found.priority, found.tags) == ("mail", 8, ("vip",))
        assert found.due_at == t.now + timedelta(hours=1)
        assert found.args == {"order": 1}


def test_the_last_of_equal_calls_is_found(hf: Holdfast) -> None:
    @hf.task
    def remind(order: int) -> None: ...

    with hf.testing() as t:
        first, second = remind.enqueue(1), remind.enqueue(1)
        assert t.assert_enqueued(remind, 1).id == second.id
        assert [job.id for job in t.jobs(remind)] == [first.id, second.id]


def test_jobs_are_listed_in_the_order_of_enqueuing(hf: Holdfast) -> None:
    @hf.task
    def one(number: int) -> int:
        return number

    @hf.task
    def other() -> None: ...

    with hf.testing() as t:
        hf.enqueue_many(one.call(number) for number in range(1500))
        other.enqueue()
        one.enqueue(1500)
        assert [record.args.get("number") for record in t.enqueued] == [*range(1500), None, 1500]
        assert len(t.jobs(one)) == 1501


def test_jobs_under_an_alias_are_those_of_the_task(hf: Holdfast) -> None:
    @hf.task(name="new", aliases=["old"])
    def renamed(number: int) -> int:
        return number

    with hf.testing() as t:
        hf.send("old", {"number": 1})
        t.assert_enqueued(renamed, 1)
        t.run_all()
        assert [job.result() for job in t.jobs(renamed)] == [1]


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_message_lists_what_was_enqueued_of_that_task(hf: Holdfast) -> None:
    @hf.task(redact=["card"])
    def charge(order: int, card: str = "") -> None: ...

    @hf.task
    def other() -> None: ...

    with hf.testing() as t:
        charge.enqueue(1, card="secret")
        charge.options(queue="slow", delay="1h").enqueue(2)
        other.enqueue()
        t.run_all()
        with pytest.raises(AssertionError) as caught:
            t.assert_enqueued(charge, 3, card="hush")
    assert str(caught.value).splitlines() == [
        "charge(order=3, card=…) was not enqueued. Of charge, there are 2 jobs:",
        "    charge(order=1, card=…)  completed, queue default",
        "    charge(order=2)  pending, queue slow",
    ]


def test_the_message_hides_what_a_handler_is_told_of_a_task_that_hides_something(hf: Holdfast) -> None:
    @hf.task(redact=["card"], retry=Retry(1))
    def charge(card: str) -> None:
        raise ValueError("declined")

    @charge.on_dead
    def refund(job: DeadJob) -> None: ...

    with hf.testing() as t:
        charge.enqueue(card="secret")
        t.run_all()
        with pytest.raises(AssertionError) as caught:
            t.assert_not_enqueued(refund)
    assert "refund(job=…)" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_message_says_what_was_enqueued_instead(hf: Holdfast) -> None:
    @hf.task
    def charge(order: int) -> None: ...

    @hf.task
    def other() -> None: ...

    with hf.testing() as t:
        with pytest.raises(
            AssertionError, match=r"^charge\(order=3\) was not enqueued\. Nothing was enqueued at all\.$"
        ):
            t.assert_enqueued(charge, 3)
        other.enqueue()
        other.enqueue()
        with pytest.raises(AssertionError, match=r"was not enqueued\. Enqueued: other x 2\.$"):
            t.assert_enqueued(charge, 3)


def test_long_lists_and_long_arguments_are_cut(hf: Holdfast) -> None:
    @hf.task
    def note(text: str) -> None: ...

    with hf.testing() as t:
        hf.enqueue_many(note.call("x" * 1000) for _ in range(100))
        with pytest.raises(AssertionError) as caught:
            t.assert_enqueued(note, "")
    lines = str(caught.value).splitlines()
    assert lines[1] == "    … 80 before these"
    assert len(lines) == 22
    assert all(len(line) < 200 for line in lines)


def test_what_must_not_be_enqueued_is_told(hf: Holdfast) -> None:
    @hf.task
    def charge(order: int) -> None: ...

    with hf.testing() as t:
        t.assert_nothing_enqueued()
        t.assert_not_enqueued(charge)
        charge.enqueue(1)
        with pytest.raises(
            AssertionError, match=r"charge was not to be enqueued, and there is 1 job:\n.*charge\(order=1\)"
        ):
            t.assert_not_enqueued(charge)
        with pytest.raises(AssertionError, match=r"Nothing was to be enqueued\. Enqueued: charge\."):
            t.assert_nothing_enqueued()


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_task_of_another_app_is_refused(hf: Holdfast) -> None:
    other = Holdfast("memory://")

    @other.task
    def theirs() -> None: ...

    with hf.testing() as t:
        with pytest.raises(InvalidOption, match="'theirs' is a task of another app"):
            t.assert_not_enqueued(theirs)
        with pytest.raises(InvalidOption, match="takes a task"):
            t.assert_enqueued(test_a_task_of_another_app_is_refused)  # type: ignore[arg-type]


def test_nothing_can_be_asked_outside_of_the_block(hf: Holdfast) -> None:
    t = hf.testing()
    with pytest.raises(ConfigurationError, match="Nothing is tested yet"):
        t.assert_nothing_enqueued()
    with t:
        t.assert_nothing_enqueued()
    for ask in (t.assert_nothing_enqueued, t.run_all, lambda: t.enqueued, lambda: t.crash_worker("during")):
        with pytest.raises(ConfigurationError, match="is over"):
            ask()


async def test_assertions_are_plain_lines_in_async_tests_too(hf: Holdfast) -> None:
    @hf.task
    async def charge(order: int) -> int:
        return order

    async with hf.testing() as t:
        t.assert_nothing_enqueued()
        await charge.aenqueue(1)
        t.assert_enqueued(charge, 1)
        assert len(t.enqueued) == 1
        assert t.dead == []
        await t.arun_all()
        assert [await job.aresult() for job in t.jobs(charge)] == [1]
