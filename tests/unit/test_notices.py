"""What is sent to other processes about a change fits into a notification of PostgreSQL's."""

from __future__ import annotations

from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import Ids
from holdfast.store import Hint, HintKind
from holdfast.stores.postgres.notices import decode, encode

HERE, THERE = uuid4(), uuid4()
LARGEST = 7_999
"""In bytes; PostgreSQL refuses more."""

queues = st.frozensets(st.text(min_size=1, max_size=200), max_size=200)
ids = st.integers(0, 400).map(lambda number: frozenset(Ids().make_many(number)))


@given(st.sampled_from(HintKind), queues, ids)
def test_a_notice_fits_and_says_what_was_said_or_more(
    kind: HintKind, queues: frozenset[str], ids: frozenset[UUID]
) -> None:
    payload = encode(Hint(kind, queues, ids), HERE)
    assert len(payload.encode()) <= LARGEST
    heard = decode(payload, THERE)
    assert heard in (Hint(kind, queues, ids), Hint(kind, frozenset(), frozenset()))


def test_what_usually_changes_is_named() -> None:
    for hint in (
        Hint(HintKind.WORK, frozenset(f"queue-{number}" for number in range(100)), frozenset()),
        Hint(HintKind.FINISHED, frozenset(), frozenset(Ids().make_many(100))),
    ):
        assert decode(encode(hint, HERE), THERE) == hint


def test_nobody_hears_itself() -> None:
    assert decode(encode(Hint(HintKind.WORK, frozenset(), frozenset()), HERE), HERE) is None
