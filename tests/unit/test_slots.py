"""Slots: what users write, and how it is shared between queues."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidOption
from holdfast.worker.slots import MOST_SLOTS, Pool, Slots, make_slots, parse_queues, share

names = st.text("abc=.-_ é", min_size=1, max_size=8)


# ── what users write ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_queues_all_of_them_share_the_slots() -> None:
    empty: list[list[str] | None] = [None, []]
    for nothing in empty:
        slots = make_slots(nothing, 8)
        assert (slots.total, slots.serves_all, slots.queues, str(slots)) == (8, True, (), "all queues: 8")


def test_queues_with_numbers_have_slots_of_their_own() -> None:
    slots = make_slots({"high": 4, "low": 1})
    assert slots.pools == (Pool(4, ("high",)), Pool(1, ("low",)))
    assert (slots.total, slots.serves_all, slots.queues) == (5, False, ("high", "low"))
    assert str(slots) == "high: 4, low: 1"


def test_queues_without_numbers_share_what_the_others_do_not_have() -> None:
    assert make_slots(["a", "b"], 6).pools == (Pool(6, ("a", "b")),)
    mixed = make_slots({"high": 4, "a": None, "b": None}, 6)
    assert mixed.pools == (Pool(4, ("high",)), Pool(6, ("a", "b")))
    assert mixed.queues == ("high", "a", "b")


@pytest.mark.parametrize(
    ("texts", "parsed"),
    [
        ([], {}),
        (["high=4", "default"], {"high": 4, "default": None}),
        (["a=b=3"], {"a=b": 3}),
        (["high=0004"], {"high": 4}),
    ],
)
def test_the_command_line_is_understood(texts: list[str], parsed: dict[str, int | None]) -> None:
    assert parse_queues(texts) == parsed


@pytest.mark.parametrize("text", ["high=", "high=many", "=", "high=-1", "high=1.5", "high=٣", "high= 3"])
def test_a_number_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"--queue .*=4"):
        parse_queues([text])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("=4", "the name of the queue is missing"),
        ("high=0", "from 1 to 10,000 slots"),
        (f"high={MOST_SLOTS + 1}", "from 1 to 10,000 slots"),
        (f"high={'9' * 5000}", "from 1 to 10,000 slots"),
    ],
)
def test_the_option_at_fault_is_named_with_what_is_right(text: str, fault: str) -> None:
    with pytest.raises(InvalidOption, match=rf"--queue {text}: .*{fault}.* Write --queue high=4"):
        parse_queues([text])


@pytest.mark.parametrize("text", ["=4", "high=0", f"high={MOST_SLOTS + 1}", "a\nb=2", ""])
def test_a_name_or_a_number_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        make_slots(parse_queues([text]))


def test_a_queue_is_named_once() -> None:
    with pytest.raises(InvalidOption, match="twice"):
        parse_queues(["a=1", "a"])
    with pytest.raises(InvalidOption, match="twice"):
        Slots((Pool(1, ("a",)), Pool(2, ("b", "a"))))


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "3", MOST_SLOTS + 1])
def test_a_pool_has_a_sensible_size(size: object) -> None:
    with pytest.raises(InvalidOption, match="whole number"):
        Pool(size)  # type: ignore[arg-type]


def test_one_text_is_not_a_list_of_queues() -> None:
    with pytest.raises(InvalidOption, match=r"such as \['high'\]"):
        make_slots("high")


@given(st.dictionaries(names.filter(lambda name: name.strip()), st.none() | st.integers(1, 50), max_size=6))
def test_what_is_parsed_is_what_was_written(queues: dict[str, int | None]) -> None:
    texts = [name if size is None else f"{name}={size}" for name, size in queues.items()]
    plain = {name: size for name, size in queues.items() if size is not None or "=" not in name}
    parsed = parse_queues(text for text in texts if "=" not in text or text.rpartition("=")[2].isdigit())
    for name, size in plain.items():
        assert parsed[name] == size


# ── sharing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

queues = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@given(st.integers(-3, 100), queues, st.integers(0, 1000))
def test_slots_are_shared_out_wholly_and_evenly(slots: int, queues: list[str], turn: int) -> None:
    shares = share(slots, queues, turn)
    assert set(shares) <= set(queues)
    assert sum(shares.values()) == (max(slots, 0) if queues else 0)
    assert all(shares.values()), "nothing is asked of a queue that may give nothing"
    if shares and slots >= len(queues):
        assert max(shares.values()) - min(shares.values()) <= 1
        assert set(shares) == set(queues)


@given(st.integers(1, 30), queues.filter(bool), st.integers(0, 1000))
def test_over_as_many_turns_as_there_are_queues_all_get_the_same(slots: int, queues: list[str], turn: int) -> None:
    total: Counter[str] = Counter()
    for number in range(len(queues)):
        total.update(share(slots, queues, turn + number))
    assert set(total.values()) == {slots}
