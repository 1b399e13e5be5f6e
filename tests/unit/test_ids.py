from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import InvalidOption
from holdfast.ids import Ids, check_id

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
RANDOM = UUID("7b0c1c1e-5d0e-4f6e-9b39-0d8a4c1f6a11")

moments = st.datetimes(datetime(1960, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds are naive


class SetClock:
    def __init__(self, now: datetime = NEW_YEAR) -> None:
        self.time = now

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        raise AssertionError("ids tell the calendar's time")


def zeros(count: int) -> bytes:
    return bytes(count)


def ones(count: int) -> bytes:
    return b"\xff" * count


def milliseconds_of(made: UUID) -> int:
    return made.int >> 80


@given(st.lists(st.tuples(moments, st.integers(1, 50)), min_size=1), st.sampled_from([zeros, ones]))
def test_ids_rise_whatever_the_clock_does(calls: list[tuple[datetime, int]], noise: Any) -> None:
    clock = SetClock()
    ids = Ids(clock, noise)
    made: list[UUID] = []
    for clock.time, count in calls:
        made += ids.make_many(count)
    assert made == sorted(set(made))
    assert len(made) == sum(count for _, count in calls)


@given(moments, st.binary(min_size=8, max_size=8))
def test_an_id_is_a_uuid_of_version_7(now: datetime, noise: bytes) -> None:
    made = Ids(SetClock(now), lambda _: noise).make()
    assert (made.version, made.variant) == (7, RFC_4122)


@given(moments.filter(lambda now: now > EPOCH + MILLISECOND))
@example(datetime(2030, 1, 1, 0, 0, 0, 1000, tzinfo=UTC))
@example(datetime(2030, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC))
def test_an_id_tells_the_millisecond_of_its_making(now: datetime) -> None:
    assert abs(milliseconds_of(Ids(SetClock(now)).make()) - (now - EPOCH) // MILLISECOND) <= 1


@given(moments, moments)
def test_ids_of_different_makers_sort_by_time(one: datetime, other: datetime) -> None:
    first, second = sorted([one, other])
    if second - first > MILLISECOND and first > EPOCH + MILLISECOND:
        assert Ids(SetClock(first), ones).make() < Ids(SetClock(second), zeros).make()


def test_two_makers_at_the_same_moment_do_not_make_the_same_ids() -> None:
    parent, child = Ids(SetClock()), Ids(SetClock())
    assert set(parent.make_many(100)).isdisjoint(child.make_many(100))


def test_many_ids_cost_one_look_at_the_clock_and_one_draw() -> None:
    draws: list[int] = []
    looks: list[datetime] = []

    class CountedClock(SetClock):
        def now(self) -> datetime:
            looks.append(self.time)
            return super().now()

    def draw(count: int) -> bytes:
        draws.append(count)
        return bytes(range(256)) * (count // 256 + 1)

    made = Ids(CountedClock(), draw).make_many(100)
    assert (len(made), len(looks), len(draws)) == (100, 1, 1)


def test_single_ids_share_a_draw() -> None:
    draws: list[int] = []

    def draw(count: int) -> bytes:
        draws.append(count)
        return os.urandom(count)

    ids = Ids(SetClock(), draw)
    made = [ids.make() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert sum(draws) < 3 * 8 * 1000
    assert len(draws) < 10


def test_a_forked_child_does_not_make_the_ids_of_its_parent() -> None:
    ids = Ids(SetClock())
    ids.make()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(made.bytes for made in ids.make_many(10)))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 160)
    os.close(reading)
    os.close(writing)
    tails = {theirs[start + 8 : start + 16] for start in range(0, 160, 16)}
    assert len(tails) == 10
    assert tails.isdisjoint(made.bytes[8:] for made in ids.make_many(10))


def test_each_id_of_a_batch_has_noise_of_its_own() -> None:
    tails = {made.int & ((1 << 62) - 1) for made in Ids(SetClock()).make_many(1000)}
    assert len(tails) == 1000


def test_no_ids_are_no_ids_and_later_ones_still_rise() -> None:
    ids = Ids(SetClock())
    before = ids.make()
    assert ids.make_many(0) == []
    assert ids.make() > before


@given(moments)
def test_an_id_is_accepted_as_itself_and_as_text(now: datetime) -> None:
    made = Ids(SetClock(now)).make()
    assert check_id(made) == check_id(str(made)) == check_id(made.hex.upper()) == made


@pytest.mark.parametrize("value", [RANDOM, str(RANDOM), UUID(int=0), "", "job-17", None, 7, b"\x07" * 16, object()])
def test_what_is_no_job_id_is_refused(value: object) -> None:
    with pytest.raises(InvalidOption, match=r"^id= takes a job's id"):
        check_id(value)


@given(st.text(alphabet="0123456789abcdef-{}", max_size=40) | st.text())
def test_any_text_is_either_a_version_7_uuid_or_refused(text: str) -> None:
    try:
        made = check_id(text)
    except InvalidOption:
        return
    assert made.version == 7
