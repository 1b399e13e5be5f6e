"""Bad input is a typed error that says what to do, shows no secret, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import math
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

import holdfast.app
from holdfast import (
    ConfigurationError,
    Context,
    Holdfast,
    HoldfastError,
    InvalidOption,
    InvalidPayload,
    InvalidTask,
    InvalidURL,
    MissingDriver,
    PayloadTooLarge,
    Queue,
    Retention,
    Retry,
    Snooze,
    StoreUnavailable,
    Task,
    TaskDefaults,
    TryAgain,
    Unique,
    UnknownTask,
    WrongDatabase,
)
from holdfast.codec import PayloadLimits
from holdfast.ids import Ids

SECRET = "hunter2"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001


@dataclass
class Card:
    number: int


class Rude:
    """A value that misbehaves when it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError(SECRET)

    __str__ = __repr__


class Shop:
    """An app whose input is all wrong. Its tasks are untyped here, since the editor would refuse these tests."""

    def __init__(self, url: str) -> None:
        self.hf: Any = Holdfast(url)
        hf = Holdfast.task

        def pay(order_id: int, card: str = "", *, when: datetime | None = None, note: Any = None) -> None: ...

        def charge(card: Card, amounts: list[Decimal] | None = None) -> None: ...

        def anything(**values: Any) -> None: ...

        def template(key: Any) -> None: ...

        def bound(ctx: Context, order_id: int) -> None: ...

        self.pay: Any = hf(self.hf)(pay)
        self.charge: Any = hf(self.hf)(charge)
        self.anything: Any = hf(self.hf)(anything)
        self.template: Any = hf(self.hf, idempotency_key="t:{key}")(template)
        self.bound: Any = hf(self.hf, bind=True)(bound)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def store_shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    path = tmp_path_factory.mktemp("shop") / "jobs.db"
    shop = Shop("memory://" if request.param == "memory" else f"sqlite:///{path}")
    yield shop
    shop.hf.close()


@pytest.fixture
def shop(store_shop: Shop) -> Iterator[Shop]:
    """The app, on each store. Nothing is to be written to it, so one is enough; after every test that is looked at."""
    before = store_shop.hf.jobs.count(), store_shop.hf.queues.list()
    yield store_shop
    after = store_shop.hf.jobs.count(), store_shop.hf.queues.list()
    assert after == before, "what was refused was written all the same"


@pytest.fixture
def app() -> Iterator[Shop]:
    """An app for what is refused before any store is asked."""
    shop = Shop("memory://")
    yield shop
    assert (shop.hf.jobs.count(), shop.hf.queues.list()) == (0, [])
    shop.hf.close()


Attempt = Callable[[Shop], object]


def refusal(kind: type[HoldfastError], words: str | Sequence[str], attempt: Callable[[], object]) -> str:
    """What a bad call is refused with: of exactly this kind, with these words, and without the secret anywhere."""
    with pytest.raises(HoldfastError) as refused:
        attempt()
    error, message = refused.value, str(refused.value)
    assert type(error) is kind, f"{type(error).__name__}: {message}"
    for part in [words] if isinstance(words, str) else words:
        assert part in message, message
    assert SECRET not in "".join(traceback.format_exception_only(error))
    # What is chained to it ends up in logs and error trackers too. (The source lines of this file do not count.)
    linked: BaseException | None = error
    while linked is not None:
        assert SECRET not in "".join(traceback.format_exception_only(linked))
        linked = linked.__cause__ or (None if linked.__suppress_context__ else linked.__context__)
    return message


def cases(*table: tuple[str, type[HoldfastError], str | Sequence[str], Attempt]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("kind", "words", "attempt"), [row[1:] for row in table], ids=[row[0] for row in table]
    )


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────────


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> list[Any]:
    value: list[Any] = [SECRET]
    value.append(value)
    return value


ARGUMENTS = cases(
    (
        "missing",
        InvalidPayload,
        ["pay(): argument order_id is missing", "It is pay(order_id: int"],
        lambda s: s.pay.enqueue(),
    ),
    (
        "too many",
        InvalidPayload,
        ["3 positional arguments were given, it takes 2"],
        lambda s: s.pay.enqueue(1, SECRET, 3),
    ),
    ("twice", InvalidPayload, "argument order_id is given twice", lambda s: s.pay.enqueue(1, order_id=2)),
    (
        "unexpected",
        InvalidPayload,
        ["there is no argument crad", "It is pay("],
        lambda s: s.pay.enqueue(1, crad=SECRET),
    ),
    ("wrong type", InvalidPayload, "argument order_id: expected int, got str", lambda s: s.pay.enqueue(SECRET)),
    ("none", InvalidPayload, "argument order_id: expected int", lambda s: s.pay.enqueue(None)),
    ("bool", InvalidPayload, "argument order_id: expected int, got bool", lambda s: s.pay.enqueue(True)),
    ("bad time", InvalidPayload, "argument when: ", lambda s: s.pay.enqueue(1, when=SECRET)),
    ("inside", InvalidPayload, "argument card.number: expected int", lambda s: s.charge.enqueue({"number": SECRET})),
    ("inside a list", InvalidPayload, "amounts[1]", lambda s: s.charge.enqueue(Card(1), ["1.0", SECRET])),
    (
        "object",
        InvalidPayload,
        ["argument note: object can't be stored as JSON", "pass an id"],
        lambda s: s.pay.enqueue(1, note=object()),
    ),
    ("rude", InvalidPayload, "argument note: Rude can't be stored as JSON", lambda s: s.pay.enqueue(1, note=Rude())),
    ("class", InvalidPayload, "argument note: ", lambda s: s.pay.enqueue(1, note=Rude)),
    ("file", InvalidPayload, "argument note: ", lambda s: s.pay.enqueue(1, note=closing(None))),  # type: ignore[type-var]
    (
        "complex",
        InvalidPayload,
        "argument note: complex can't be stored",
        lambda s: s.pay.enqueue(1, note=[SECRET, 1j]),
    ),
    (
        "nan",
        InvalidPayload,
        "argument note: NaN and infinity don't exist in JSON; pass None",
        lambda s: s.pay.enqueue(1, note=math.nan),
    ),
    ("infinity", InvalidPayload, "NaN and infinity", lambda s: s.pay.enqueue(1, note=[None, -math.inf])),
    (
        "huge integer",
        InvalidPayload,
        "argument note: an integer in it is beyond 64 bits; pass it as text",
        lambda s: s.pay.enqueue(1, note=2**64),
    ),
    ("huger integer", InvalidPayload, "beyond 64 bits", lambda s: s.pay.enqueue(1, note=10**5000)),
    (
        "surrogate",
        InvalidPayload,
        "argument note: a text in it has a lone surrogate",
        lambda s: s.pay.enqueue(1, note=SECRET + "\ud800"),
    ),
    (
        "key of a tuple",
        InvalidPayload,
        "can't be the key of a dictionary in JSON; use text",
        lambda s: s.pay.enqueue(1, note={(1, 2): SECRET}),
    ),
    ("cyclic", InvalidPayload, ["argument note: ", "contains itself"], lambda s: s.pay.enqueue(1, note=cyclic())),
    ("too deep", InvalidPayload, "argument note: it is nested more than", lambda s: s.pay.enqueue(1, note=deep(64))),
    ("far too deep", InvalidPayload, "nested too deeply", lambda s: s.pay.enqueue(1, note=deep(100_000))),
    (
        "too large",
        PayloadTooLarge,
        ["bytes of JSON, the limit is 262,144", "pass its id"],
        lambda s: s.pay.enqueue(1, SECRET * 50_000),
    ),
    (
        "context",
        InvalidPayload,
        "2 positional arguments were given, it takes 1",
        lambda s: s.bound.enqueue(Context("x"), 1),
    ),
    ("context by name", InvalidPayload, "there is no argument ctx", lambda s: s.bound.enqueue(order_id=1, ctx=1)),
    (
        "no key",
        InvalidPayload,
        ['Template "t:{key}": argument key is None', "Pass a value for it"],
        lambda s: s.template.enqueue(None),
    ),
    (
        "list as key",
        InvalidPayload,
        "argument key is not a text, a number or a truth value",
        lambda s: s.template.enqueue([SECRET]),
    ),
    (
        "long key",
        InvalidPayload,
        ["its key must have 1 to 512 characters", "Use an id in it"],
        lambda s: s.template.enqueue(SECRET * 100),
    ),
    ("call", InvalidPayload, "argument order_id is missing", lambda s: s.pay.call()),
    ("options", InvalidPayload, "argument order_id: expected int", lambda s: s.pay.options(delay="5m").enqueue(SECRET)),
    (
        "many",
        InvalidPayload,
        "argument order_id: expected int",
        lambda s: s.hf.enqueue_many([s.pay.call(1), s.pay.call(SECRET)]),
    ),
)


@ARGUMENTS
def test_bad_arguments_are_refused_by_name(
    shop: Shop, kind: type[HoldfastError], words: str | Sequence[str], attempt: Attempt
) -> None:
    refusal(kind, words, lambda: attempt(shop))


@cases(
    (
        "unknown",
        UnknownTask,
        ["No task named 'pya' has been published", "Did you mean 'pay'?"],
        lambda s: s.hf.send("pya", {"order_id": 1}),
    ),
    ("empty name", InvalidOption, "the task's name must be 1 to 200 printable characters", lambda s: s.hf.send("", {})),
    ("no name", InvalidOption, "the task's name", lambda s: s.hf.send(None, {})),
    ("a task", InvalidOption, "the task's name", lambda s: s.hf.send(s.pay, {"order_id": 1})),
    ("missing", InvalidPayload, "argument order_id is missing", lambda s: s.hf.send("pay", {"card": SECRET})),
    ("nothing", InvalidPayload, "argument order_id is missing", lambda s: s.hf.send("pay")),
    (
        "unexpected",
        InvalidPayload,
        "there is no argument crad",
        lambda s: s.hf.send("pay", {"order_id": 1, "crad": SECRET}),
    ),
    (
        "called self",
        InvalidPayload,
        "there is no argument self",
        lambda s: s.hf.send("pay", {"order_id": 1, "self": SECRET}),
    ),
    ("list", InvalidPayload, "a mapping of names to values", lambda s: s.hf.send("pay", [SECRET])),
    ("text", InvalidPayload, "a mapping of names to values", lambda s: s.hf.send("pay", SECRET)),
    ("number as name", InvalidPayload, "every argument needs a name", lambda s: s.hf.send("pay", {1: SECRET})),
    ("no identifier", InvalidPayload, "every argument needs a name", lambda s: s.hf.send("anything", {"a b": SECRET})),
    (
        "object",
        InvalidPayload,
        "argument note: object can't be stored",
        lambda s: s.hf.send("pay", {"order_id": 1, "note": object()}),
    ),
    ("too large", PayloadTooLarge, "pass its id", lambda s: s.hf.send("pay", {"order_id": 1, "card": SECRET * 50_000})),
    ("option", InvalidOption, "Did you mean queue=?", lambda s: s.hf.send("pay", {"order_id": 1}, queu="q")),
)
def test_what_can_not_be_sent_is_refused(
    shop: Shop, kind: type[HoldfastError], words: str | Sequence[str], attempt: Attempt
) -> None:
    refusal(kind, words, lambda: attempt(shop))


@cases(
    ("missing", InvalidPayload, "order_id", lambda s: s.hf.send("pay", {"card": SECRET})),
    ("unexpected", InvalidPayload, "crad", lambda s: s.hf.send("pay", {"order_id": 1, "crad": SECRET})),
    ("called self", InvalidPayload, "self", lambda s: s.hf.send("pay", {"order_id": 1, "self": SECRET})),
    ("wrong type", InvalidPayload, "argument order_id", lambda s: s.hf.send("pay", {"order_id": SECRET})),
    ("inside", InvalidPayload, "card.number", lambda s: s.hf.send("charge", {"card": {"number": SECRET}})),
    ("list", InvalidPayload, "a mapping of names to values", lambda s: s.hf.send("pay", [SECRET])),
    ("number as name", InvalidPayload, "every argument needs a name", lambda s: s.hf.send("pay", {1: SECRET})),
    (
        "object",
        InvalidPayload,
        "argument note: object can't be stored",
        lambda s: s.hf.send("pay", {"order_id": 1, "note": object()}),
    ),
    ("too large", PayloadTooLarge, "pass its id", lambda s: s.hf.send("pay", {"order_id": 1, "card": SECRET * 50_000})),
    ("too deep", InvalidPayload, "nested more than", lambda s: s.hf.send("pay", {"order_id": 1, "note": deep(64)})),
    ("nan", InvalidPayload, "NaN and infinity", lambda s: s.hf.send("pay", {"order_id": 1, "note": math.nan})),
    ("no key", InvalidPayload, "argument key is None", lambda s: s.hf.send("template", {"key": None})),
    ("bad time", InvalidPayload, "argument when", lambda s: s.hf.send("pay", {"order_id": 1, "when": SECRET})),
)
def test_what_can_not_be_sent_from_elsewhere_is_refused(
    tmp_path: Path, kind: type[HoldfastError], words: str | Sequence[str], attempt: Attempt
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    shop, other = Shop(url), Shop("memory://")
    shop.hf.publish_tasks()
    other.hf = Holdfast(url)
    try:
        refusal(kind, words, lambda: attempt(other))
        assert shop.hf.jobs.count() == 0
    finally:
        other.hf.close()
        shop.hf.close()


@pytest.mark.parametrize(
    "things",
    [None, 5, [5], ["pay"], "pay", "task", "prepared", "call"],
    ids=repr,
)
def test_a_batch_of_something_else_than_calls_is_refused(shop: Shop, things: Any) -> None:
    known = {"task": [shop.pay], "prepared": [shop.pay.options(delay=1)], "call": shop.pay.call(1)}
    given = known.get(things, things) if isinstance(things, str) else things
    refusal(InvalidOption, "task.call(", lambda: shop.hf.enqueue_many(given))


@pytest.fixture(params=["memory", "sqlite"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """An app of its own, for what is refused of jobs that are there."""
    shop = Shop("memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}")
    yield shop
    shop.hf.close()


@pytest.mark.parametrize("reason", [None, 5, b"text", "a\ud800b"], ids=ascii)
def test_a_bad_reason_is_refused_and_the_job_left_as_it_was(filled: Shop, reason: Any) -> None:
    job = filled.pay.enqueue(1)
    refusal(InvalidOption, "reason", lambda: job.cancel(reason=reason))
    refusal(InvalidOption, "reason", lambda: filled.hf.jobs.cancel(task="pay", reason=reason))
    assert [record.state for record in filled.hf.jobs.page().jobs] == ["pending"]


async def test_a_bad_reason_spoils_nothing_for_those_who_write_at_the_same_time(filled: Shop) -> None:
    job = await filled.pay.aenqueue(1)
    busy = filled.hf.aenqueue_many([filled.pay.call(1)] * 5000)  # while this is written, the others gather behind it
    others = [filled.pay.aenqueue(number) for number in range(5)]
    *answers, _ = await asyncio.gather(busy, *others, job.acancel("a\ud800b"), return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []
    assert await filled.hf.jobs.acount() == 5006


@pytest.mark.parametrize(
    "changes", [5, [1], "card", {1: 2}, {"crad": SECRET}, {"order_id": SECRET}, {"note": 1j}], ids=str
)
def test_a_bad_edit_is_refused_and_the_job_left_as_it_was(filled: Shop, changes: Any) -> None:
    job = filled.pay.enqueue(1)
    job.cancel()
    filled.hf.publish_tasks()
    for handle in (job, filled.hf.job(job.id)):
        refusal(InvalidPayload, "pay()", lambda handle=handle: handle.retry(changes))  # type: ignore[misc]
    assert (job.state(), job.record().args) == ("cancelled", {"order_id": 1})


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────

BAD_NAMES = ["", "x" * 201, "a\0b", "a\x1bb", "a\nb", "a\x7fb", "a\ud800b", "a\u202eb", 5, None, b"q", ["q"]]
by_bad_name = pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:12])


@by_bad_name
def test_a_bad_name_of_a_queue_is_refused_everywhere(app: Shop, name: Any) -> None:
    words = "must be 1 to 200 printable characters"
    if name is not None:  # None means: as the task says
        refusal(InvalidOption, ["queue", words], lambda: app.pay.options(queue=name))
        refusal(InvalidOption, ["queue", words], lambda: app.hf.send("pay", {"order_id": 1}, queue=name))
    refusal(InvalidOption, ["queue", words], lambda: app.hf.task(queue=name)(_nothing))
    refusal(InvalidOption, ["queue", words], lambda: TaskDefaults(queue=name))
    refusal(InvalidOption, ["Queue(name)", words], lambda: Queue(name))
    refusal(InvalidOption, ["queue", words], lambda: app.hf.queues.pause(name))
    refusal(InvalidOption, ["queue", words], lambda: app.hf.queues.resume(name))
    refusal(InvalidOption, ["queue", words], lambda: app.hf.queues.bound(name, 5))


@by_bad_name
def test_a_bad_name_of_a_task_is_refused(app: Shop, name: Any) -> None:
    words = "1 to 200 printable characters"
    refusal(InvalidOption, words, lambda: app.hf.task(name=name)(_nothing))
    refusal(InvalidOption, "aliases", lambda: app.hf.task(aliases=[name])(_nothing))
    refusal(InvalidOption, words, lambda: app.hf.send(name))


@by_bad_name
def test_a_bad_tag_is_refused(app: Shop, name: Any) -> None:
    refusal(InvalidOption, "tags", lambda: app.pay.options(tags=[name]))


@pytest.mark.parametrize("key", ["", "x" * 513, "a\0b", "a\nb", "a\ud800b", 5, b"key"], ids=lambda key: ascii(key)[:12])
def test_a_bad_idempotency_key_is_refused(app: Shop, key: Any) -> None:
    refusal(InvalidOption, "idempotency_key must be 1 to 512 printable", lambda: app.pay.options(idempotency_key=key))
    refusal(InvalidOption, "A template must be", lambda: app.hf.task(idempotency_key=key)(_nothing))


def _nothing() -> None: ...


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SPANS: list[tuple[Any, str]] = [
    (-1, "is negative. Spans start at 0"),
    (timedelta(seconds=-1), "is negative"),
    ("-5m", "is not a span. Write '30s', '5m', '1h30m' or a number of seconds"),
    ("", "is not a span"),
    ("5", "is not a span"),
    ("5 minutes", "is not a span"),
    ("30s5m", "is not a span"),
    ("5m5m", "is not a span"),
    ("1e3s", "is not a span"),
    (math.nan, "is not a span"),
    (math.inf, "is not a span"),
    (True, "is not a span"),
    ([5], "is not a span"),
    (Rude(), "is not a span"),
    ("5000d", "is longer than ten years. Give a shorter span"),
    (10**20, "is longer than ten years"),
    (timedelta(days=5000), "is longer than ten years"),
]


@pytest.mark.parametrize(("span", "words"), SPANS, ids=[ascii(type(span).__name__) for span, _ in SPANS])
def test_a_bad_span_is_refused_by_the_name_of_its_option(app: Shop, span: Any, words: str) -> None:
    job = app.hf.job(Ids().make())
    refusal(InvalidOption, ["delay", words], lambda: app.pay.options(delay=span))
    refusal(InvalidOption, ["expires", words], lambda: app.pay.options(expires=span))
    refusal(InvalidOption, ["wait", words], lambda: app.pay.options(wait=span))
    refusal(InvalidOption, ["wait", words], lambda: app.hf.enqueue_many([app.pay.call(1)], wait=span))
    refusal(InvalidOption, ["delay", words], lambda: app.hf.send("pay", {"order_id": 1}, delay=span))
    refusal(InvalidOption, ["timeout", words], lambda: job.result(timeout=span))
    refusal(InvalidOption, ["expires", words], lambda: app.hf.task(expires=span)(_nothing))
    refusal(InvalidOption, ["timeout", words], lambda: app.hf.task(timeout=span)(_nothing))
    refusal(InvalidOption, ["soft_timeout", words], lambda: app.hf.task(soft_timeout=span)(_nothing))
    refusal(InvalidOption, ["expires", words], lambda: TaskDefaults(expires=span))
    refusal(InvalidOption, ["Unique(window)", words], lambda: Unique("{x}", window=span))
    refusal(InvalidOption, ["Retry(base)", words], lambda: Retry(base=span))
    refusal(InvalidOption, ["Retry(cap)", words], lambda: Retry(cap=span))
    refusal(InvalidOption, ["Retention(completed)", words], lambda: Retention(completed=span))
    refusal(InvalidOption, ["Retention(cancelled)", words], lambda: Retention(cancelled=span))
    refusal(InvalidOption, ["Retention(idempotency)", words], lambda: Retention(idempotency=span))
    refusal(InvalidOption, ["work_limit", words], lambda: Holdfast("memory://", work_limit=span))
    refusal(InvalidOption, ["Snooze(delay)", words], lambda: Snooze(span))
    refusal(InvalidOption, ["TryAgain(delay)", words], lambda: TryAgain(span))


@cases(
    (
        "near",
        InvalidOption,
        ["options(): there is no option dely=", "Did you mean delay=?"],
        lambda s: s.pay.options(dely=SECRET),
    ),
    (
        "far",
        InvalidOption,
        ["there is no option xyz=", "There are: tx, queue, priority"],
        lambda s: s.pay.options(xyz=SECRET),
    ),
    (
        "of tasks",
        InvalidOption,
        ["task '_nothing': there is no option queu=", "Did you mean queue=?"],
        lambda s: s.hf.task(queu=SECRET)(_nothing),
    ),
    ("of jobs, for a task", InvalidOption, "there is no option delay=", lambda s: s.hf.task(delay="5m")(_nothing)),
    (
        "both times",
        InvalidOption,
        ["delay= and at= can't both be given", "Leave one out"],
        lambda s: s.pay.options(delay="5m", at=NOW),
    ),
    ("naive at", InvalidOption, ["at= has no time zone", "datetime.now(UTC)"], lambda s: s.pay.options(at=NAIVE)),
    ("naive text", InvalidOption, "at= has no time zone", lambda s: s.pay.options(at="2026-01-01 12:00")),
    ("no time", InvalidOption, ["at= is not a time", "2026-12-31T23:59:59+00:00"], lambda s: s.pay.options(at=SECRET)),
    ("number as time", InvalidOption, "at= takes a datetime with a time zone", lambda s: s.pay.options(at=5)),
    ("date as time", InvalidOption, "at= takes a datetime", lambda s: s.pay.options(at=NOW.date())),
    ("naive expiry", InvalidOption, "expires= has no time zone", lambda s: s.pay.options(expires=NAIVE)),
    (
        "priority 10",
        InvalidOption,
        "priority must be a number from 0 to 9, higher first",
        lambda s: s.pay.options(priority=10),
    ),
    ("priority -1", InvalidOption, "priority must be", lambda s: s.pay.options(priority=-1)),
    ("priority 5.0", InvalidOption, "priority must be", lambda s: s.pay.options(priority=5.0)),
    ("priority true", InvalidOption, "priority must be", lambda s: s.pay.options(priority=True)),
    ("priority urgent", InvalidOption, "'high', 'default' or 'low'", lambda s: s.pay.options(priority="urgent")),
    ("priority list", InvalidOption, "priority must be", lambda s: s.pay.options(priority=[5])),
    ("priority of a task", InvalidOption, "priority must be", lambda s: s.hf.task(priority="5")(_nothing)),
    (
        "tags text",
        InvalidOption,
        "tags takes a list of texts, such as tags=['one']",
        lambda s: s.pay.options(tags="vip"),
    ),
    ("tags number", InvalidOption, "tags takes a list of texts", lambda s: s.pay.options(tags=5)),
    (
        "21 tags",
        InvalidOption,
        "tags: 21 are too many for one job; at most 20",
        lambda s: s.pay.options(tags=[str(i) for i in range(21)]),
    ),
    ("context list", InvalidOption, "context= takes plain data by name", lambda s: s.pay.options(context=[1])),
    ("context text", InvalidOption, "context= takes plain data by name", lambda s: s.pay.options(context=SECRET)),
    (
        "context object",
        InvalidOption,
        ["context= takes plain data by name", "trace"],
        lambda s: s.pay.options(context={"trace": Rude()}),
    ),
    (
        "context number",
        InvalidOption,
        "context= takes plain data by name",
        lambda s: s.pay.options(context={1: SECRET}),
    ),
    (
        "context large",
        InvalidOption,
        "characters of JSON, the limit is 16,384",
        lambda s: s.pay.options(context={"a": SECRET * 3000}),
    ),
    ("context larger", InvalidOption, "the limit is", lambda s: s.pay.options(context={"a": SECRET * 50_000})),
    ("id text", InvalidOption, "id= takes a job's id (a UUIDv7)", lambda s: s.pay.options(id=SECRET)),
    ("id 4", InvalidOption, "id= takes a job's id", lambda s: s.pay.options(id=uuid4())),
    ("id number", InvalidOption, "id= takes a job's id", lambda s: s.pay.options(id=5)),
    ("id of a handle", InvalidOption, "id", lambda s: s.pay.job(SECRET)),
    ("id of any handle", InvalidOption, "id", lambda s: s.hf.job(uuid4())),
    ("id of a look", InvalidOption, "id", lambda s: s.hf.jobs.get(5)),
    (
        "soft is hard",
        InvalidOption,
        ["soft_timeout=30s must be", "less than timeout=30s"],
        lambda s: s.hf.task(timeout="30s", soft_timeout=30)(_nothing),
    ),
    (
        "soft beyond hard",
        InvalidOption,
        "to leave time for cleaning up",
        lambda s: s.hf.task(timeout="30s", soft_timeout="1m")(_nothing),
    ),
    ("soft beyond default", InvalidOption, "timeout=5m", lambda s: s.hf.task(soft_timeout="5m")(_nothing)),
    ("no timeout", InvalidOption, "more than nothing", lambda s: s.hf.task(timeout=0)(_nothing)),
    ("no soft timeout", InvalidOption, "more than nothing", lambda s: s.hf.task(soft_timeout=0)(_nothing)),
    ("soft default", InvalidOption, "soft_timeout", lambda s: TaskDefaults(soft_timeout="1h", timeout="1m")),
    ("retry number", InvalidOption, "retry= takes Retry(5, base='1s', …)", lambda s: s.hf.task(retry=5)(_nothing)),
    ("retry none", InvalidOption, "retry= takes Retry", lambda s: s.hf.task(retry=None)(_nothing)),
    ("retry class", InvalidOption, "retry= takes Retry", lambda s: s.hf.task(retry=Retry)(_nothing)),
    ("retry default", InvalidOption, "retry= takes Retry", lambda s: TaskDefaults(retry=5)),  # type: ignore[arg-type]
    ("no attempts", InvalidOption, "Retry(attempts) is the number of runs in all, from 1 to 1000", lambda s: Retry(0)),
    ("many attempts", InvalidOption, "Retry(attempts)", lambda s: Retry(1001)),
    ("half an attempt", InvalidOption, "Retry(attempts)", lambda s: Retry(2.5)),  # type: ignore[arg-type]
    ("true attempts", InvalidOption, "Retry(attempts)", lambda s: Retry(True)),
    (
        "base over cap",
        InvalidOption,
        ["Retry(base=1h) is longer than its cap=10m", "Raise the cap"],
        lambda s: Retry(base="1h"),
    ),
    (
        "retry on one",
        InvalidOption,
        "Retry(on) takes a list of exception classes, such as [ConnectionError]",
        lambda s: Retry(on=cast("Any", OSError)),
    ),
    ("retry on text", InvalidOption, "Retry(on)", lambda s: Retry(on=["OSError"])),  # type: ignore[list-item]
    ("retry on exit", InvalidOption, "Retry(on)", lambda s: Retry(on=[KeyboardInterrupt])),  # type: ignore[list-item]
    ("never on", InvalidOption, "Retry(never_on)", lambda s: Retry(never_on=[5])),  # type: ignore[list-item]
    (
        "unique text",
        InvalidOption,
        "unique= takes Unique('{argument}', window='10m')",
        lambda s: s.hf.task(unique="{a}")(_nothing),
    ),
    ("unique empty", InvalidOption, "A template must be a text of 1 to 512 characters", lambda s: Unique("")),
    ("unique number", InvalidOption, "A template must be a text", lambda s: Unique(5)),  # type: ignore[arg-type]
    ("unique brace", InvalidOption, "write {{ and }} for braces", lambda s: Unique("{url")),
    ("unique code", InvalidOption, "is not allowed", lambda s: Unique("{url!r}")),
    ("unique private", InvalidOption, "is not allowed", lambda s: Unique("{url.__class__}")),
    ("unique glued", InvalidOption, "put a separator", lambda s: Unique("{a}{b}")),
    (
        "unique name",
        InvalidOption,
        ["there is no parameter a", "The task takes nothing"],
        lambda s: s.hf.task(unique=Unique("{a}"))(_nothing),
    ),
    (
        "key name",
        InvalidOption,
        "there is no parameter order",
        lambda s: s.hf.task(idempotency_key="{order}")(_nothing),
    ),
    (
        "redact",
        InvalidOption,
        "redact= names 'card', which is not one of its arguments",
        lambda s: s.hf.task(redact=["card"])(_nothing),
    ),
    ("redact text", InvalidOption, "redact takes a list of texts", lambda s: s.hf.task(redact="card")(_nothing)),
    ("aliases text", InvalidOption, "aliases takes a list of texts", lambda s: s.hf.task(aliases="old")(_nothing)),
    (
        "delivery",
        InvalidOption,
        "delivery must be one of 'at_least_once', 'at_most_once', 'transactional'",
        lambda s: s.hf.task(delivery="exactly_once")(_nothing),
    ),
    (
        "delivery list",
        InvalidOption,
        "delivery must be one of",
        lambda s: s.hf.task(delivery=["at_most_once"])(_nothing),
    ),
    (
        "bound 0",
        InvalidOption,
        "Queue(bound) must be a whole number from 1 to 1,000,000,000",
        lambda s: Queue("q", bound=0),
    ),
    ("bound text", InvalidOption, "Queue(bound)", lambda s: Queue("q", bound="5")),  # type: ignore[arg-type]
    ("bound true", InvalidOption, "Queue(bound)", lambda s: Queue("q", bound=True)),
    ("bound none", InvalidOption, "Queue(bound)", lambda s: Queue("q", bound=None)),  # type: ignore[arg-type]
    ("scheduled bound", InvalidOption, "Queue(scheduled_bound)", lambda s: Queue("q", scheduled_bound=-5)),
    ("bound later", InvalidOption, "bound must be a whole number", lambda s: s.hf.queues.bound("q", 0)),
    ("bound later text", InvalidOption, "bound must be a whole number", lambda s: s.hf.queues.bound("q", "5")),
    ("limits", InvalidOption, "payload must be a whole number of at least 1", lambda s: PayloadLimits(payload=0)),
    ("tx", WrongDatabase, "", lambda s: s.pay.options(tx=SECRET).enqueue(1)),
    ("tx of a call", InvalidOption, "Give it to enqueue_many itself", lambda s: s.pay.options(tx=sqlite3).call(1)),
)
def test_bad_options_are_refused(
    app: Shop, kind: type[HoldfastError], words: str | Sequence[str], attempt: Attempt
) -> None:
    refusal(kind, words, lambda: attempt(app))


BEYOND_THE_CALENDAR: list[dict[str, Any]] = [
    {"at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))},  # it is the year 10000 in UTC
    {"at": datetime.max.replace(tzinfo=UTC), "expires": "1h"},
    {"expires": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))},
    {"expires": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12)))},  # it is the year 0 in UTC
]


@pytest.mark.parametrize("options", BEYOND_THE_CALENDAR, ids=str)
async def test_a_time_beyond_the_calendar_is_refused_and_spoils_nothing(filled: Shop, options: dict[str, Any]) -> None:
    """A row that can't be read again would stop every page and every tick."""
    with pytest.raises(InvalidOption, match=min(options)):
        await filled.pay.options(**options).aenqueue(1)
    assert (await filled.hf.jobs.apage()).jobs == []
    assert (await filled.hf._engine.store.tick()).expired == 0


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Holder:
    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...


async def generate() -> Any:
    yield 1


def star(*urls: str) -> None: ...


def slash(url: str, /) -> None: ...


def with_context(ctx: Context) -> None: ...


def context_second(url: str, ctx: Context) -> None: ...


@cases(
    ("lambda", InvalidTask, ["A lambda has no name", "name="], lambda s: s.hf.task(lambda: None)),
    ("class", InvalidTask, "a class can't be a task. Write a function", lambda s: s.hf.task(Holder)),
    ("method", InvalidTask, "a method can't be a task", lambda s: s.hf.task(Holder().method)),
    ("function of a class", InvalidTask, "a method can't be a task", lambda s: s.hf.task(Holder.method)),
    ("class method", InvalidTask, "a method can't be a task", lambda s: s.hf.task(Holder.of_class)),
    ("text", InvalidTask, "only a function can be a task. Write one with def", lambda s: s.hf.task("pay")),
    ("number", InvalidTask, "only a function can be a task", lambda s: s.hf.task(5)),
    (
        "callable",
        InvalidTask,
        "only a function can be a task",
        lambda s: s.hf.task(name="x")(functools.partial(_nothing)),
    ),
    (
        "generator",
        InvalidTask,
        "a function that yields can't be a task. Return the values",
        lambda s: s.hf.task(generate),
    ),
    ("a task", InvalidTask, "pay is a task already. Use @hf.task once", lambda s: s.hf.task(s.pay)),
    ("star", InvalidTask, ["`*urls` can't be stored by name", "Take a list"], lambda s: s.hf.task(star)),
    ("slash", InvalidTask, ["`url` is positional-only", "Remove the `/`"], lambda s: s.hf.task(slash)),
    ("context", InvalidTask, "Add bind=True, which passes it", lambda s: s.hf.task(with_context)),
    ("no context", InvalidTask, "Make `ctx: Context` its first parameter", lambda s: s.hf.task(bind=True)(_nothing)),
    ("context second", InvalidTask, "Put `ctx: Context` before it", lambda s: s.hf.task(bind=True)(context_second)),
)
def test_what_can_not_be_a_task_is_refused_at_import(
    app: Shop, kind: type[HoldfastError], words: str | Sequence[str], attempt: Attempt
) -> None:
    refusal(kind, words, lambda: attempt(app))


def test_types_that_json_can_not_hold_are_refused_on_first_use(app: Shop) -> None:
    @Holdfast.task(app.hf)
    def draw(on: Path, with_: Rude) -> None: ...

    refusal(InvalidTask, ["draw: the annotation of", "can't be read from JSON"], lambda: draw.enqueue(Path(), Rude()))


def test_types_that_are_not_there_are_refused_on_first_use(app: Shop) -> None:
    def draw(on: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    task: Task[Any, Any] = app.hf.task(draw)
    words = ["draw: the annotation of on can't be resolved: Nowhere is not defined", "outside `if TYPE_CHECKING`"]
    refusal(InvalidTask, words, lambda: task.enqueue(1))


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@cases(
    (
        "name",
        InvalidOption,
        ["filter: there is no option tsk=", "Did you mean task=?"],
        lambda s: s.hf.jobs.count(tsk=SECRET),
    ),
    ("name of a page", InvalidOption, "there is no option order=", lambda s: s.hf.jobs.page(order="id")),
    ("name of dead", InvalidOption, "Did you mean queue=?", lambda s: s.hf.dead.page(queu="q")),
    ("name of a bulk", InvalidOption, "Did you mean task=?", lambda s: s.hf.jobs.cancel(taks="pay")),
    ("name of a retry", InvalidOption, "Did you mean task=?", lambda s: s.hf.dead.retry(taks="pay")),
    ("name of a discard", InvalidOption, "Did you mean task=?", lambda s: s.hf.dead.discard(taks="pay")),
    ("no filter", InvalidOption, "hf.jobs.cancel() needs a filter", lambda s: s.hf.jobs.cancel()),
    ("no filter for retry", InvalidOption, "hf.dead.retry() needs a filter", lambda s: s.hf.dead.retry()),
    ("no filter for discard", InvalidOption, "everything=True means all of them", lambda s: s.hf.dead.discard()),
    (
        "state of dead",
        InvalidOption,
        ["state= can't be given here", "Use hf.jobs"],
        lambda s: s.hf.dead.count(state="dead"),
    ),
    ("state", InvalidOption, "state is one of pending, active, retrying", lambda s: s.hf.jobs.count(state="waiting")),
    ("states", InvalidOption, "state is one of", lambda s: s.hf.jobs.count(state=["dead", SECRET])),
    ("state number", InvalidOption, "state is one of", lambda s: s.hf.jobs.count(state=5)),
    ("state list in list", InvalidOption, "state is one of", lambda s: s.hf.jobs.count(state=[["dead"]])),
    ("queue number", InvalidOption, "queue", lambda s: s.hf.jobs.count(queue=5)),
    ("queue list", InvalidOption, "queue", lambda s: s.hf.jobs.count(queue=["a", "b"])),
    ("queue surrogate", InvalidOption, "queue", lambda s: s.hf.jobs.count(queue="\ud800")),
    ("task object", InvalidOption, "task", lambda s: s.hf.jobs.count(task=s.pay)),
    ("task surrogate", InvalidOption, "task", lambda s: s.hf.jobs.count(task="\ud800")),
    ("error type", InvalidOption, "error_type", lambda s: s.hf.jobs.count(error_type=ValueError)),
    ("tags text", InvalidOption, "tags takes a list of texts", lambda s: s.hf.jobs.count(tags="vip")),
    ("tags number", InvalidOption, "tags takes a list of texts", lambda s: s.hf.jobs.count(tags=5)),
    ("tags surrogate", InvalidOption, "tags", lambda s: s.hf.jobs.count(tags=["\ud800"])),
    ("args list", InvalidOption, "args", lambda s: s.hf.jobs.count(args=["order_id"])),
    ("args text", InvalidOption, "args", lambda s: s.hf.jobs.count(args="order_id")),
    (
        "args name",
        InvalidOption,
        ["is not an argument's name", "args.name.inner"],
        lambda s: s.hf.jobs.count(args={"a b": 1}),
    ),
    ("args sql", InvalidOption, "is not an argument's name", lambda s: s.hf.jobs.count(args={"a') or 1=1 --": 1})),
    ("args path", InvalidOption, "is not an argument's name", lambda s: s.hf.jobs.count(args={"a[0]": 1})),
    ("args dots", InvalidOption, "is not an argument's name", lambda s: s.hf.jobs.count(args={"a..b": 1})),
    ("args empty", InvalidOption, "is not an argument's name", lambda s: s.hf.jobs.count(args={"": 1})),
    ("args number", InvalidOption, "is not an argument's name", lambda s: s.hf.jobs.count(args={5: 1})),
    (
        "args object",
        InvalidOption,
        "args.a can be compared with text, a number",
        lambda s: s.hf.jobs.count(args={"a": [SECRET]}),
    ),
    ("args time", InvalidOption, "args.a can be compared with", lambda s: s.hf.jobs.page(args={"a": NOW})),
    ("args huge", InvalidOption, "numbers of 64 bits only", lambda s: s.hf.jobs.page(args={"a": 2**63})),
    ("args surrogate", InvalidOption, "args.a", lambda s: s.hf.jobs.page(args={"a": "\ud800"})),
    ("since naive", InvalidOption, "since= has no time zone", lambda s: s.hf.jobs.count(since=NAIVE)),
    ("until number", InvalidOption, "until= takes a datetime", lambda s: s.hf.jobs.count(until=5)),
    (
        "finished text",
        InvalidOption,
        "finished_before= is not a time",
        lambda s: s.hf.jobs.count(finished_before=SECRET),
    ),
    ("limit 0", InvalidOption, "limit must be a number from 1 to 1,000", lambda s: s.hf.jobs.page(limit=0)),
    ("limit 1001", InvalidOption, "limit must be", lambda s: s.hf.dead.page(limit=1001)),
    ("limit true", InvalidOption, "limit must be", lambda s: s.hf.jobs.page(limit=True)),
    ("limit text", InvalidOption, "limit must be", lambda s: s.hf.jobs.page(limit="5")),
    ("limit none", InvalidOption, "limit must be", lambda s: s.hf.jobs.page(limit=None)),
    ("limit half", InvalidOption, "limit must be", lambda s: s.hf.jobs.page(limit=2.5)),
    ("cursor text", InvalidOption, "cursor", lambda s: s.hf.jobs.page(cursor=SECRET)),
    ("cursor 4", InvalidOption, "cursor", lambda s: s.hf.dead.page(cursor=uuid4())),
    ("cursor number", InvalidOption, "cursor", lambda s: s.hf.jobs.page(cursor=5)),
)
def test_bad_filters_are_refused(
    shop: Shop, kind: type[HoldfastError], words: str | Sequence[str], attempt: Attempt
) -> None:
    refusal(kind, words, lambda: attempt(shop))


# ── the app ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("jobs.db", "Use sqlite:///path"),
        ("/var/jobs.db", "Use sqlite:///path"),
        ("mysql://host/jobs", "is not the URL of a database that Holdfast knows"),
        (f"mysql://user:{SECRET}@host/jobs", "user:***@host"),
        (f"redis://:{SECRET}@host:6379/0", "is not the URL of a database"),
        (f"mysql://user:{SECRET}@host:port/jobs", "is not the URL of a database"),
        (f"http://user:{SECRET}@[::1/", "is not a URL"),
        (f"sqlite://user:{SECRET}@host/jobs.db", "does not name a file"),
        (f"sqlite:///jobs.db?key={SECRET}", "does not name a file"),
        ("sqlite://", "does not name a file. Write sqlite:///jobs.db"),
        ("sqlite:///", "does not name a file"),
        ("sqlite:jobs.db", "does not name a file"),
        ("sqlite://jobs.db", "sqlite:////var/lib/app/jobs.db"),
        ("sqlite:///jobs.db#x", "does not name a file"),
        ("sqlite:///a%00b", "does not name a file"),
        ("sqlite:///:memory:", "Use memory:// for tests"),
        ("postgresql+asyncpg://host/jobs", "is not the URL of a database"),
        (5, "URL"),
        (Path("jobs.db"), "URL"),
        (b"sqlite:///jobs.db", "URL"),
    ],
    ids=lambda value: str(value).replace(SECRET, "…"),
)
def test_a_bad_url_is_refused_without_its_password(url: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal(InvalidURL, words, lambda: Holdfast(url))
    if isinstance(url, str):
        monkeypatch.setenv("HOLDFAST_URL", url)
        refusal(InvalidURL, words, Holdfast)


def test_a_url_never_shows_its_password() -> None:
    for url in (f"memory://user:{SECRET}@host", f"memory://user:{SECRET}%40x@host"):
        assert SECRET not in repr(Holdfast(url))


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_database_without_its_driver_names_what_to_install(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        holdfast.app.importlib.util,  # type: ignore[attr-defined]
        "find_spec",
        lambda name, *rest: None if name == "asyncpg" else found(name, *rest),
    )
    message = refusal(
        MissingDriver, "pip install 'holdfast[postgres]'", lambda: Holdfast(f"{scheme}://user:{SECRET}@host/jobs")
    )
    assert "PostgreSQL needs its driver" in message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"queues": ["email"]}, "queues"),
        ({"queues": Queue("email")}, "queues"),
        ({"queues": [Queue("email"), Queue("email", bound=5)]}, "queues"),
        ({"defaults": {"queue": "q"}}, "defaults"),
        ({"retention": "1h"}, "retention"),
        ({"imports": "shop.billing"}, "imports"),
        ({"imports": [5]}, "imports"),
    ],
    ids=str,
)
def test_bad_settings_of_an_app_are_refused_when_it_is_made(settings: dict[str, Any], words: str) -> None:
    refusal(InvalidOption, words, lambda: Holdfast("memory://", **settings))


def test_every_error_of_the_program_is_a_configuration_error() -> None:
    kinds = (InvalidOption, InvalidTask, InvalidURL, MissingDriver)
    assert all(issubclass(kind, ConfigurationError) for kind in kinds)
    assert not issubclass(InvalidPayload, ConfigurationError)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "missing" / "jobs.db", ["does not exist", "Create it first"]),
        (lambda folder: folder, "it is a folder. Name a file in it"),
        (
            lambda folder: _file(folder / "text.db", b"not a database, but long enough to be looked at " * 50),
            "is not a SQLite",
        ),
    ],
    ids=["no folder", "folder", "text"],
)
def test_a_file_that_can_not_be_a_database_is_refused_on_first_use(
    tmp_path: Path, make: Callable[[Path], Path], words: str | Sequence[str]
) -> None:
    path = make(tmp_path)
    shop = Shop(f"sqlite:///{path}")
    before = path.read_bytes() if path.is_file() else None
    refusal(StoreUnavailable, [str(path), *([words] if isinstance(words, str) else words)], lambda: shop.pay.enqueue(1))
    assert (path.read_bytes() if path.is_file() else None) == before
    shop.hf.close()


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_arguments_of_a_mapping_that_fails_are_refused(shop: Shop) -> None:
    class Broken(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise RuntimeError(SECRET)

        def __iter__(self) -> Iterator[str]:
            return iter(["order_id"])

        def __len__(self) -> int:
            return 1

    refusal(InvalidPayload, "pay", lambda: shop.hf.send("pay", Broken()))


def test_every_refusal_of_a_value_ends_as_a_sentence(app: Shop) -> None:
    for attempt in (
        lambda: app.pay.enqueue("1"),
        lambda: app.charge.enqueue({}),
        lambda: app.pay.enqueue(1, when=""),
    ):
        assert refusal(InvalidPayload, "argument", attempt)[-1] in ".?)"
