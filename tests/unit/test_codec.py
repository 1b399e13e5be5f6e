"""What is accepted can be decoded by the worker; what is not is refused with its reason and without its value."""

from __future__ import annotations

import asyncio
import enum
import functools
import math
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import jsonschema_rs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.codec import PayloadLimits, check_payload, decode_any, fingerprint
from holdfast.errors import HoldfastError, InvalidOption, InvalidPayload, InvalidTask, PayloadTooLarge
from holdfast.schema import check_schema
from holdfast.signature import Signature

if TYPE_CHECKING:
    from decimal import Context as Elsewhere

SECRET = "hunter2"

# A loaded machine is no failure: nothing here is judged by the wall clock.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Context:
    """Stands for holdfast.Context, which is told by its name."""


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    sku: str
    cents: int = 0


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError(f"{SECRET} is negative")
        if self.id == 666:
            raise KeyError(SECRET)


class Point(msgspec.Struct):
    x: float
    y: float


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    depth: int
    label: NotRequired[str]


class Address(pydantic.BaseModel):
    city: str
    since: datetime


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    name: str = pydantic.Field(alias="fullName")
    born: date
    tags: set[str] = set()
    addresses: list[Address] = []

    @pydantic.field_validator("name")
    @classmethod
    def check_name(cls, name: str) -> str:
        if name == SECRET:
            raise ValueError(f"{SECRET} is taken")
        return name


class Tree(pydantic.BaseModel):
    children: list[Tree] = []


T = TypeVar("T")


class Box(pydantic.BaseModel, Generic[T]):
    content: T


class Unknown:
    """A class that JSON knows nothing of, and whose methods nobody may call."""

    def __repr__(self) -> str:
        raise AssertionError("repr was called")

    __str__ = __repr__


class Loud(str):
    """A text that shouts when it is asked to show itself."""

    __slots__ = ()

    def __str__(self) -> str:
        raise AssertionError("str was called")

    __repr__ = __str__


class EvilMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise AssertionError("name was asked for")

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError("nothing may be asked of this class")


class Evil(metaclass=EvilMeta):
    def __getattribute__(self, name: str) -> Any:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        raise AssertionError("repr was called")


class EvilModel(pydantic.BaseModel):
    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise LookupError(SECRET)


def signature(function: Callable[..., Any], *, bind: bool = False, **options: Any) -> Signature:
    return Signature(function, task=function.__name__, bind=bind, **options)


def taking(annotation: Any) -> Signature:
    """The signature of a task with one argument `value` of this type, which it returns."""

    def task(value: Any) -> Any: ...

    task.__annotations__ = {"value": annotation, "return": annotation}
    return signature(task)


def refusal(call: Callable[[], object], error: type[HoldfastError] = InvalidPayload) -> str:
    """The message of a refusal, after checking that no trace of the exception holds a value."""
    with pytest.raises(error) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.value, limit=0))
    assert SECRET not in shown
    assert caught.value.__cause__ is None or error is InvalidTask
    return str(caught.value)


def raised(call: Callable[[], object]) -> HoldfastError | None:
    """The refusal that a call ends with, if any; another exception passes through and fails the test."""
    try:
        call()
    except HoldfastError as error:
        return error
    return None


def charge(order_id: int, cents: int = 0, *, card: str = "none") -> str:
    return f"{order_id} {cents} {card}"


def anything(value: Any, other: Any = None) -> Any: ...


def sums(first: int, **amounts: int) -> None: ...


CHARGE = signature(charge)
ANYTHING = signature(anything)


# ── import-time checks ───────────────────────────────────────────────────────────────────────────────────────────────


def test_star_args_are_refused_with_a_remedy() -> None:
    def task(*numbers: int) -> None: ...

    assert "`*numbers`" in (message := refusal(lambda: signature(task), InvalidTask))
    assert "Take a list: `numbers: list[int]`" in message


def test_positional_only_parameters_are_refused_with_a_remedy() -> None:
    def task(number: int, /) -> None: ...
    def older(__number: int) -> None: ...  # noqa: PYI063

    assert "`number` is positional-only" in refusal(lambda: signature(task), InvalidTask)
    assert "`__number` is positional-only" in refusal(lambda: signature(older), InvalidTask)


def test_the_context_of_a_bound_task_is_no_argument() -> None:
    def task(ctx: Context, order_id: int) -> None: ...
    def unannotated(ctx, order_id: int) -> None: ...  # type: ignore[no-untyped-def]
    def dotted(ctx: holdfast.Context, order_id: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function in (task, unannotated, dotted):
        bound = signature(function, bind=True)
        assert bound.parameters == ("order_id",)
        assert bound.decode(bound.encode((1,), {})) == {"order_id": 1}


def test_a_real_annotation_object_is_recognised_as_the_context() -> None:
    def task(ctx: Any, order_id: int) -> None: ...

    task.__annotations__ = {"ctx": Context, "order_id": int}
    assert signature(task, bind=True).parameters == ("order_id",)
    assert "Add bind=True" in refusal(lambda: signature(task), InvalidTask)


def test_context_without_bind_is_refused() -> None:
    def task(ctx: Context, order_id: int) -> None: ...
    def quoted(ctx: "Context") -> None: ...  # noqa: UP037

    for function in (task, quoted):
        assert "`ctx: Context` is not an argument. Add bind=True" in refusal(
            functools.partial(signature, function), InvalidTask
        )


def test_bind_without_context_is_refused() -> None:
    def nothing() -> None: ...
    def keyword(*, ctx: Context) -> None: ...
    def extra(**ctx: Context) -> None: ...
    def other(order_id: int) -> None: ...
    def late(ctx: Context, again: Context) -> None: ...

    for function in (nothing, keyword, extra):
        bound = functools.partial(signature, function, bind=True)
        assert "Make `ctx: Context` its first parameter" in refusal(bound, InvalidTask)
    assert "first parameter is `order_id: int`" in refusal(lambda: signature(other, bind=True), InvalidTask)
    assert "`again: Context` is not an argument" in refusal(lambda: signature(late, bind=True), InvalidTask)


def test_a_flow_has_a_context_of_another_name() -> None:
    def flow(f: Flow, order_id: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert signature(flow, bind=True, context="Flow").parameters == ("order_id",)
    assert "`ctx: Context`" in refusal(lambda: signature(flow, bind=True), InvalidTask)


class Holder:
    def method(self) -> None: ...

    @staticmethod
    def static(order_id: int) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Holder, "a class can't be a task"),
        (Holder().method, "a method can't be a task"),
        (Holder.method, "a method can't be a task"),
        (Holder.__dict__["static"], "a method can't be a task"),
        (generator, "a function that yields"),
        (async_generator, "a function that yields"),
        (functools.partial(charge, 1), "only a function"),
        (5, "only a function"),
        (getattr, "only a function"),
        (len, "positional-only"),
    ],
)
def test_what_is_not_a_plain_function_is_refused(function: Any, message: str) -> None:
    assert message in refusal(lambda: Signature(function, task="task", bind=False), InvalidTask)


def test_a_lambda_needs_a_name() -> None:
    function = lambda order_id: order_id  # noqa: E731
    assert "A lambda has no name" in refusal(lambda: signature(function), InvalidTask)
    named = Signature(function, task="named", bind=False)
    assert named.decode(named.encode((1,), {})) == {"order_id": 1}


def test_a_static_method_taken_from_its_class_is_a_function() -> None:
    assert signature(Holder.static).parameters == ("order_id",)


def test_a_decorated_function_keeps_its_signature() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    decorated = signature(logged(charge))
    assert decorated.parameters == ("order_id", "cents", "card")
    assert decorated.encode((1,), {}) == '{"order_id":1}'


def test_import_resolves_no_annotation_but_the_first_use_does() -> None:
    def task(order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def returning() -> Missing: ...  # type: ignore[name-defined]  # noqa: F821
    def nested(orders: list["Missing"]) -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    for function, subject in ((task, "annotation of order"), (returning, "return annotation")):
        late = signature(function)
        assert f"{subject} can't be resolved: Missing is not defined" in refusal(
            functools.partial(late.encode, (), {}), InvalidTask
        )
    assert "annotation of orders" in refusal(lambda: signature(nested).decode("{}"), InvalidTask)


def test_a_context_imported_for_type_checkers_only_is_never_resolved() -> None:
    def task(ctx: Elsewhere, order_id: int) -> None: ...

    bound = signature(task, bind=True, context="Elsewhere")
    assert bound.encode((1,), {}) == '{"order_id":1}'


@pytest.mark.parametrize(
    "annotation", [Unknown, list[Unknown], Callable[[], int], type[int], Unknown | int, Order | Options, Iterator[int]]
)
def test_a_type_that_json_cannot_hold_is_refused_on_first_use(annotation: Any) -> None:
    unusable = taking(annotation)
    assert "the annotation of value can't be read from JSON" in refusal(lambda: unusable.encode((1,), {}), InvalidTask)


def test_a_result_that_json_cannot_hold_is_refused_before_anything_is_enqueued() -> None:
    def task(order_id: int) -> Unknown | None: ...

    assert "its return annotation can't be read" in refusal(lambda: signature(task).encode((1,), {}), InvalidTask)


# ── binding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("args", "kwargs", "payload"),
    [
        ((1,), {}, '{"order_id":1}'),
        ((1, 2), {}, '{"cents":2,"order_id":1}'),
        ((1,), {"card": "x"}, '{"card":"x","order_id":1}'),
        ((), {"card": "x", "order_id": 1}, '{"card":"x","order_id":1}'),
        ((1, 0), {"card": "none"}, '{"card":"none","cents":0,"order_id":1}'),
    ],
)
def test_arguments_are_stored_by_name_and_only_those_given(
    args: tuple[Any, ...], kwargs: dict[str, Any], payload: str
) -> None:
    assert CHARGE.encode(args, kwargs) == payload
    assert charge(**CHARGE.decode(payload)) == charge(*args, **kwargs)


SHOWN = "It is charge(order_id: int, cents: int = ..., *, card: str = ...)."


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, f"charge(): argument order_id is missing. {SHOWN}"),
        ((), {"cents": 1}, f"charge(): argument order_id is missing. {SHOWN}"),
        ((1,), {"zip": 1}, f"charge(): there is no argument zip. {SHOWN}"),
        ((1,), {"not a name": 1}, f"charge(): there is no argument 'not a name'. {SHOWN}"),
        ((1,), {"order_id": 1}, f"charge(): argument order_id is given twice. {SHOWN}"),
        ((1, 2, "x"), {}, f"charge(): 3 positional arguments were given, it takes 2. {SHOWN}"),
        (("x",), {}, "charge(): argument order_id: expected int, got str. " + SHOWN),
        ((None,), {}, "charge(): argument order_id: expected int, got null. " + SHOWN),
        ((True,), {}, "charge(): argument order_id: expected int, got bool. " + SHOWN),
        ((1.5,), {}, "charge(): argument order_id: expected int, got float. " + SHOWN),
        ((1,), {"card": b"x", "cents": []}, "charge(): argument cents: expected int, got array. " + SHOWN),
    ],
)
def test_a_call_that_does_not_fit_says_why(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    assert refusal(lambda: CHARGE.encode(args, kwargs)) == message


def test_any_name_is_taken_by_a_task_with_keyword_arguments() -> None:
    open_task = signature(sums)
    assert open_task.accepts_extra
    assert not CHARGE.accepts_extra
    payload = open_task.encode((1,), {"a": 2, "b": 3})
    assert open_task.decode(payload) == {"first": 1, "a": 2, "b": 3}
    assert "argument b: expected int, got str" in refusal(lambda: open_task.encode((1,), {"b": "x"}))
    assert "argument first is missing" in refusal(lambda: open_task.encode((), {"b": 1}))
    assert "It is sums(first: int, **amounts: int)." in refusal(lambda: open_task.decode("{}"))


def test_keyword_arguments_with_structure_show_the_path() -> None:
    def task(**orders: list[Order]) -> None: ...

    message = refusal(lambda: signature(task).decode('{"a":[{"id":1},{"id":"x"}]}'))
    assert message.startswith("task(): argument a[1].id: expected int, got str. It is task(**orders:")


def test_the_context_cannot_be_passed_as_a_keyword_argument() -> None:
    def task(ctx: Context, **rest: int) -> None: ...

    bound = signature(task, bind=True)
    assert "argument ctx: it is the context" in refusal(lambda: bound.encode((), {"ctx": 1}))


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────

UUID_VALUE = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
PERSON = Person(fullName="Ada", born=date(1815, 12, 10), tags={"a"}, addresses=[Address(city="London", since=NOON)])

TYPED: list[tuple[Any, Any]] = [
    (int, 2**63),
    (int, -(2**63)),
    (float, 1.5),
    (str, "é\x00\u2028🎉"),
    (bool, True),
    (bytes, b"\x00\xff"),
    (None, None),
    (int | None, None),
    (Any, {"a": [1, None, {"b": "null"}]}),
    (object, [1, "x"]),
    (datetime, NOON),
    (date, date(2026, 1, 2)),
    (time, time(1, 2, 3)),
    (timedelta, timedelta(days=1, seconds=5)),
    (UUID, UUID_VALUE),
    (Decimal, Decimal("1.10")),
    (Color, Color.BLUE),
    (Level, Level.HIGH),
    (Literal["a", 1], "a"),
    (Annotated[int, msgspec.Meta(ge=1)], 1),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "x")),
    (set[int], {1, 2}),
    (dict[str, list[UUID]], {"a": [UUID_VALUE]}),
    (dict[int, str], {1: "x"}),
    (Sequence[int], [1]),
    (Mapping[str, int], {"a": 1}),
    (Order, Order(1, [Line("x", 2)])),
    (list[Order] | None, [Order(1)]),
    (Point, Point(1.0, 2.0)),
    (Cat | Dog, Dog("Rex")),
    (Pair, Pair(1, "x")),
    (Options, {"depth": 1}),
    (Person, PERSON),
    (dict[str, Person | None], {"a": PERSON, "b": None}),
    (Tree, Tree(children=[Tree(), Tree(children=[Tree()])])),
    (Box[int], Box[int](content=1)),
]


@pytest.mark.parametrize(("annotation", "value"), TYPED, ids=lambda item: None)
def test_typed_values_come_back_as_they_went(annotation: Any, value: Any) -> None:
    task = taking(annotation)
    decoded = task.decode(task.encode((value,), {}))["value"]
    assert decoded == value
    assert type(decoded) is type(value)
    assert task.decode_result(task.encode_result(value)) == value


@pytest.mark.parametrize(("annotation", "value"), TYPED, ids=lambda item: None)
def test_the_published_schema_accepts_what_the_signature_accepts(annotation: Any, value: Any) -> None:
    task = taking(annotation)
    schema = task.schema()
    jsonschema_rs.meta.validate(schema)
    payload = task.encode((value,), {})
    assert jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(decode_any(payload))
    check_schema("task", schema, payload)


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (Color, SECRET, "value: not one of the allowed values"),
        (Literal["a"], SECRET, "value: not one of the allowed values"),
        (Cat | Dog, {"type": SECRET}, "value.type: not one of the allowed values"),
        (UUID, SECRET, "value: invalid UUID"),
        (datetime, SECRET, "value: invalid RFC3339 encoded datetime"),
        (Decimal, SECRET, "value: invalid decimal string"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "value: expected int >= 1"),
        (Annotated[str, msgspec.Meta(max_length=2)], SECRET, "value: expected str of length <= 2"),
        (list[Order], [{"id": SECRET}], "value[0].id: expected int, got str"),
        (list[Order], [{}], "value[0]: object missing required field id"),
        (dict[str, int], {SECRET: "x"}, "value[...]: expected int, got str"),
        (dict[int, str], {SECRET: "x"}, "value: one of its keys: expected int, got str"),
        (Order, Order.__new__(Order), "value: "),
        (Order, {"id": -1}, "value: refused by its type with ValueError"),
        (tuple[int, int], (1,), "value: expected array of length 2"),
        (Person, {"fullName": "Ada"}, "value: refused by its model: born: missing"),
        (Person, {"fullName": SECRET, "born": "1815-12-10"}, "value: refused by its model: fullName: value_error"),
        (
            list[Person],
            [{"fullName": 5, "born": "1815-12-10"}],
            "value[0]: refused by its model: fullName: string_type",
        ),
        (Person, SECRET, "value: refused by its model: model_type"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_without_itself(annotation: Any, value: Any, problem: str) -> None:
    task = taking(annotation)
    assert f"task(): argument {problem}" in refusal(lambda: task.encode((value,), {}))


def test_a_type_that_raises_anything_refuses_the_payload() -> None:
    task = taking(Order)
    assert "refused by its type with KeyError" in refusal(lambda: task.decode('{"value":{"id":666}}'))
    assert "refused by its type with KeyError" in refusal(lambda: task.encode(({"id": 666},), {}))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Unknown(), "Unknown can't be stored as JSON; pass an id or plain data"),
        ({"a": [Unknown()]}, "Unknown can't be stored as JSON; pass an id or plain data"),
        (EvilModel(), "EvilModel can't be stored as JSON (LookupError)"),
        (1j, "complex can't be stored as JSON"),
        (iter([]), "can't be stored as JSON"),
        (msgspec.UNSET, "UnsetType can't be stored"),
        ({(1, 2): 3}, "tuple can't be the key of a dictionary"),
        ({Unknown(): 3}, "Unknown can't be stored as JSON"),
        ({None: 3}, "NoneType can't be the key of a dictionary"),
        ({True: 3}, "bool can't be the key of a dictionary"),
        ("\ud800", "lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        (2**64, "beyond 64 bits"),
        (-(2**63) - 1, "beyond 64 bits"),
        ([10**5000], "beyond 64 bits"),
        (["1" * 30, {"a": -(2**70)}], "beyond 64 bits"),
        (math.nan, "NaN and infinity"),
        ([None, {"a": -math.inf}], "NaN and infinity"),
        (Point(math.inf, 0.0), "NaN and infinity"),
        (Box[float](content=math.nan), "NaN and infinity"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(value: Any, problem: str) -> None:
    for call in (
        lambda: ANYTHING.encode((1, value), {}),
        lambda: check_payload({"value": 1, "other": value}, task="anything"),
    ):
        message = refusal(call)
        assert message.startswith("anything(): argument other: ")
        assert problem in message
    assert problem in refusal(lambda: ANYTHING.encode_result(value))


def test_a_value_that_forbids_every_question_is_refused_by_its_real_name() -> None:
    for value in (Evil(), [Evil()], {"a": Evil()}, Line("x", Evil())):  # type: ignore[arg-type]
        message = refusal(functools.partial(ANYTHING.encode, (value,), {}))
        assert message.startswith("anything(): argument value: ")
        assert "can't be stored as JSON" in message


def test_a_secret_in_a_refused_value_is_never_shown() -> None:
    task = taking(Address)
    for value in ({"city": SECRET}, {"city": SECRET, "since": SECRET}, [SECRET], SECRET, {SECRET: SECRET}):
        assert "argument value: refused by its model" in refusal(functools.partial(task.encode, (value,), {}))


def test_subclasses_of_plain_types_are_stored_as_plain_data() -> None:
    class Whole(int):
        def __repr__(self) -> str:
            raise AssertionError("repr was called")

        __str__ = __int__ = __index__ = __repr__  # type: ignore[assignment]

    class Fraction(float):
        __slots__ = ()

    value = [Loud("x"), Whole(3), Fraction(1.5), {Loud("k"): Color.RED}]
    assert ANYTHING.encode((value,), {}) == '{"value":["x",3,1.5,{"k":"red"}]}'


def test_names_that_are_subclasses_of_text_are_never_asked_to_show_themselves() -> None:
    calls: list[dict[str, Any]] = [{Loud("order_id"): 1}, {Loud("card"): Unknown()}, {Loud("zip"): 1}]
    for kwargs in calls:
        assert "charge(): " in refusal(functools.partial(CHARGE.encode, (1,), kwargs))
    assert "argument b" in refusal(lambda: check_payload({Loud("b"): Unknown()}))


def test_none_is_not_mistaken_for_nan() -> None:
    for value in (None, [None], {"a": None}, "null", [None, 1.5, "null"], Order(1)):
        assert decode_any(ANYTHING.encode((value, None), {}))["other"] is None


def test_a_value_that_contains_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    assert "argument value: it is nested too deeply or contains itself" in refusal(
        lambda: ANYTHING.encode((cycle,), {})
    )


def nested(levels: int) -> Any:
    """Lists and objects in turn, so many levels deep."""
    value: Any = "[[[["
    for level in range(levels):
        value = [value, level] if level % 2 else {"}": value}
    return value


def test_depth_is_counted_exactly_and_brackets_in_texts_are_not_levels() -> None:
    # The object of the arguments is the first level.
    assert ANYTHING.decode(ANYTHING.encode((nested(63),), {})) == {"value": nested(63)}
    for call in (
        lambda: ANYTHING.encode((nested(64),), {}),
        lambda: check_payload({"value": nested(64)}, task="anything"),
    ):
        assert "anything(): argument value: it is nested more than 6" in refusal(call)
    quoted = ['\\"[', "\\\\", "]" * 100, "[" * 100, '"' * 50 + "{" * 100]
    assert ANYTHING.decode(ANYTHING.encode((quoted,), {})) == {"value": quoted}
    assert ANYTHING.decode(ANYTHING.encode(([[]] * 1000,), {})) == {"value": [[]] * 1000}


def test_depth_cannot_be_hidden_behind_quotes_and_backslashes() -> None:
    # Whoever misreads where a text ends takes the brackets after it for text, or those in it for levels.
    for text in ("\\", '"', '\\"', "\\\\", '\\\\"', '"\\', "é\\"):
        assert "nested more than" in refusal(functools.partial(ANYTHING.encode, ([text, nested(70)],), {}))
        assert "beyond 64 bits" in refusal(functools.partial(ANYTHING.encode, ([text, 2**64],), {}))
        harmless = [text, "[" * 100, text, "9" * 100]
        assert ANYTHING.decode(ANYTHING.encode((harmless,), {})) == {"value": harmless}


def test_depth_is_limited_for_payloads_from_outside_too() -> None:
    for depth in (65, 2000, 100_000):
        payload = '{"value":' + "[" * depth + "]" * depth + "}"
        assert "nested" in refusal(functools.partial(ANYTHING.decode, payload))
    assert "can't be read" in refusal(lambda: ANYTHING.decode('{"value":' + "[" * 100_000))
    assert "nested" in refusal(lambda: decode_any("[" * 300 + "]" * 300))


def test_size_is_limited_and_both_numbers_are_told() -> None:
    small = signature(anything, limits=PayloadLimits(payload=20, result=5))
    assert small.encode(("x" * 8,), {}) == '{"value":"xxxxxxxx"}'
    message = refusal(lambda: small.encode(("é" * 500,), {}), PayloadTooLarge)
    assert "1,012 bytes" in message
    assert "the limit is 20." in message
    assert small.encode_result("xxx") == '"xxx"'
    assert "6 bytes of JSON, the limit is 5." in refusal(lambda: small.encode_result("xxxx"), PayloadTooLarge)
    assert "limit is 262,144" in refusal(lambda: ANYTHING.encode(("x" * 262_144,), {}), PayloadTooLarge)
    assert "limit is 20" in refusal(
        lambda: check_payload({"a": "x" * 20}, limits=PayloadLimits(payload=20)), PayloadTooLarge
    )


@pytest.mark.parametrize(
    "options", [{"payload": 0}, {"result": -1}, {"depth": 0}, {"depth": 257}, {"payload": 1.5}, {"depth": True}]
)
def test_limits_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=f"PayloadLimits: {next(iter(options))}"):
        PayloadLimits(**options)


# ── payloads from outside ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("", "can't be read: it is not valid JSON"),
        ("{", "can't be read: it is not valid JSON"),
        ('{"order_id":1}}', "can't be read: it is not valid JSON"),
        ('{"order_id":NaN}', "it is not valid JSON"),
        ("[1]", "can't be read: expected object, got array"),
        ("null", "can't be read: expected object, got null"),
        ('{"order_id":"\ud800"}', "it is not valid Unicode"),
        (b'{"order_id":1,"card":"\xff"}', "it is not valid Unicode"),
        ('{"order_id":1,"card":"\\ud800"}', "can't be read"),
        ('{"order_id":1,"evil\\nname":1}', r"there is no argument 'evil\nname'"),
        ('{"cents":1}', "argument order_id is missing"),
        ('{"order_id":"hunter2"}', "argument order_id: expected int, got str"),
        (f'{{"order_id":{2**64}}}', "an integer in it is beyond 64 bits"),
        ('{"order_id":1%s}' % ("0" * 100_000), "an integer in it is beyond 64 bits"),
        ('{"order_id":1e999}', "argument order_id: "),
    ],
)
def test_a_bad_payload_from_outside_is_refused(payload: str | bytes, problem: str) -> None:
    assert problem in refusal(lambda: CHARGE.decode(payload))


def test_a_bad_name_among_keyword_arguments_from_outside_is_refused() -> None:
    assert "it is not valid" in refusal(lambda: signature(sums).decode(b'{"first":1,"\xff":1}'))


def test_a_payload_may_be_text_or_bytes() -> None:
    assert CHARGE.decode('{"order_id":1}') == CHARGE.decode(b'{"order_id":1}') == {"order_id": 1}


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_result_is_null_and_none() -> None:
    def task() -> None: ...

    assert signature(task).encode_result(None) == "null"
    assert signature(task).decode_result("null") is None
    assert signature(task).decode_result(None) is None
    assert decode_any(None) is None


def test_a_result_other_than_annotated_is_refused() -> None:
    def task() -> list[Order]:
        return []

    returning = signature(task)
    assert refusal(lambda: returning.encode_result(5)) == "task(): the result: expected array, got int"
    assert "task(): the result at [0].id: expected int" in refusal(lambda: returning.decode_result('[{"id":"x"}]'))


def test_a_result_without_annotation_is_plain_data() -> None:
    def task(): ...  # type: ignore[no-untyped-def]
    def never() -> NoReturn:
        raise NotImplementedError

    for function in (task, never):
        assert signature(function).decode_result(signature(function).encode_result(Order(1))) == {"id": 1, "lines": []}


def test_stored_json_that_cannot_be_read_is_refused() -> None:
    assert refusal(lambda: decode_any("{")) == "The stored JSON can't be read: it is not valid JSON."


# ── schema ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_schema_names_required_arguments_and_defaults() -> None:
    assert CHARGE.schema() == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "charge",
        "type": "object",
        "properties": {
            "order_id": {"type": "integer"},
            "cents": {"type": "integer", "default": 0},
            "card": {"type": "string", "default": "none"},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }


def test_the_schema_of_keyword_arguments_types_the_rest() -> None:
    assert signature(sums).schema()["additionalProperties"] == {"type": "integer"}


def test_defaults_are_shown_as_json_and_left_out_where_there_is_none() -> None:
    def task(when: datetime = NOON, order: Order = Order(1), model: Person = PERSON, odd: Any = Unknown()) -> None: ...

    defaults = signature(task).defaults()
    assert defaults == {
        "when": "2026-01-02T12:30:00Z",
        "order": {"id": 1, "lines": []},
        "model": PERSON.model_dump(mode="json", by_alias=True),
    }
    assert signature(task).schema()["properties"]["order"]["default"] == defaults["order"]
    assert "default" not in signature(task).schema()["properties"]["odd"]


def test_definitions_of_models_are_inside_and_do_not_meet() -> None:
    def task(person: Person, tree: Tree, box: Box[Address], order: Order, address: Address) -> None: ...

    schema = signature(task).schema()
    jsonschema_rs.meta.validate(schema)
    validator = jsonschema_rs.validator_for(schema, retriever=lambda uri: pytest.fail(f"{uri} was asked for"))
    arguments = {
        "person": {
            "fullName": "Ada",
            "born": "1815-12-10",
            "addresses": [{"city": "x", "since": "2026-01-02T00:00:00Z"}],
        },
        "tree": {"children": [{"children": []}]},
        "box": {"content": {"city": "x", "since": "2026-01-02T00:00:00Z"}},
        "order": {"id": 1},
        "address": {"city": "x", "since": "2026-01-02T00:00:00Z"},
    }
    assert validator.is_valid(arguments)
    for name, broken in (("tree", {"children": [{"children": 5}]}), ("box", {"content": {}}), ("order", {"id": "x"})):
        assert not validator.is_valid({**arguments, name: broken})


# ── sending by name ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plain_mapping_is_a_payload() -> None:
    assert check_payload({"order_id": 1, "when": NOON}) == '{"order_id":1,"when":"2026-01-02T12:30:00Z"}'


@pytest.mark.parametrize("args", [{"a b": 1}, {"": 1}, {1: 1}, {"1": 1}, {Unknown(): 1}, 5, None, "text", [1]])
def test_arguments_need_names_that_can_be_parameters(args: Any) -> None:
    message = refusal(lambda: check_payload(args, task="charge"))
    assert message.startswith("charge(): ")
    assert "name" in message


def test_raw_json_is_checked_before_it_is_sent() -> None:
    assert "can't be read" in refusal(lambda: check_payload({"a": msgspec.Raw(b"{bad")}))
    assert "can't be read" in refusal(lambda: ANYTHING.encode((msgspec.Raw(b"{bad"),), {}))


def test_a_payload_is_checked_against_the_published_schema() -> None:
    schema = CHARGE.schema()
    check_schema("charge", schema, '{"order_id":1}')
    cases = {
        "{}": 'charge(): arguments: "order_id" is a required property.',
        '{"order_id":"hunter2"}': 'charge(): argument order_id: value is not of type "integer".',
        '{"order_id":1,"z":5}': "charge(): arguments: Additional properties are not allowed ('z' was unexpected).",
        '["hunter2"]': 'charge(): arguments: value is not of type "object".',
    }
    for payload, message in cases.items():
        assert refusal(functools.partial(check_schema, "charge", schema, payload)) == message
    assert "can't be read" in refusal(lambda: check_schema("charge", schema, "{"))


def test_the_path_of_a_problem_is_named_and_its_value_is_not() -> None:
    def task(
        orders: list[Order] = [],  # noqa: B006
        color: Color = Color.RED,
        key: UUID = UUID_VALUE,
        at: Annotated[datetime, msgspec.Meta(tz=True)] = NOON,
        code: Annotated[str, msgspec.Meta(max_length=3, pattern="^a")] = "a",
        names: dict[Annotated[str, msgspec.Meta(max_length=3)], int] = {},  # noqa: B006
        maybe: int | None = None,
    ) -> None: ...

    schema = signature(task).schema()
    check_schema("task", schema, '{"orders":[{"id":1}],"color":"blue","code":"abc","names":{"a":1},"maybe":null}')
    cases: dict[str, dict[str, Any]] = {
        "orders[1].id": {"orders": [{"id": 1}, {"id": SECRET}]},
        "color": {"color": SECRET},
        "key": {"key": SECRET},
        "at": {"at": SECRET},
        "code": {"code": SECRET},
        "names": {"names": {SECRET: 1}},
        "maybe": {"maybe": SECRET},
    }
    for path, arguments in cases.items():
        message = refusal(functools.partial(check_schema, "task", schema, check_payload(arguments)))
        assert message.startswith(f"task(): argument {path}: ")


def test_a_schema_never_makes_us_fetch_anything(tmp_path: Path) -> None:
    # The file is there and holds a schema that accepts everything: only refusing to read it can refuse the payload.
    elsewhere = tmp_path / "schema.json"
    elsewhere.write_text("{}")
    schema = {"$ref": elsewhere.as_uri()}
    assert jsonschema_rs.validator_for(schema).is_valid({})
    assert "published schema" in refusal(lambda: check_schema("task", schema, "{}"), InvalidTask)


def test_a_published_schema_that_is_none_is_refused() -> None:
    assert "published schema" in refusal(lambda: check_schema("task", {"type": "nonsense"}, "{}"), InvalidTask)


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────────────────

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["null", "[" * 70, '\\"{', "9" * 30])
)
JSON_VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@PATIENT
@given(value=JSON_VALUES)
def test_any_json_value_comes_back_as_it_went(value: Any) -> None:
    assert ANYTHING.decode(ANYTHING.encode((value,), {})) == {"value": value}
    assert ANYTHING.decode_result(ANYTHING.encode_result(value)) == value
    assert decode_any(check_payload({"value": value})) == {"value": value}


ORDERS = st.builds(
    Order, id=st.integers(0, 600), lines=st.lists(st.builds(Line, sku=st.text(), cents=st.integers(0, 9)))
)
TYPED_VALUES = st.fixed_dictionaries(
    {"orders": st.lists(ORDERS), "when": st.datetimes(timezones=st.just(UTC)), "key": st.uuids()},
    optional={
        "price": st.decimals(allow_nan=False, allow_infinity=False) | st.none(),
        "day": st.dates(),
        "colors": st.dictionaries(st.text(), st.sampled_from(Color)),
        "box": st.builds(Box[int], content=st.integers(-(2**63), 2**63)),
    },
)


def typed(
    orders: list[Order],
    when: datetime,
    key: UUID,
    price: Decimal | None = None,
    day: date | None = None,
    colors: dict[str, Color] | None = None,
    box: Box[int] | None = None,
) -> None: ...


@PATIENT
@given(arguments=TYPED_VALUES)
def test_any_typed_arguments_come_back_as_they_went(arguments: dict[str, Any]) -> None:
    task = signature(typed)
    payload = task.encode((), arguments)
    assert task.decode(payload) == arguments
    check_schema("typed", task.schema(), payload)


class Explosive:
    """Raises whatever is asked for, whenever anything is asked of it."""

    def __init__(self, error: type[Exception]) -> None:
        object.__setattr__(self, "error", error)

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "error")(SECRET)

    def __repr__(self) -> str:
        raise AssertionError("repr was called")

    __str__ = __repr__
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError(SECRET)


class ExplosiveMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError(SECRET)

    keys = values = __iter__ = __len__ = items


HOSTILE: list[Any] = [
    math.nan,
    math.inf,
    "\ud800",
    2**64,
    10**5000,
    1j,
    object(),
    Unknown(),
    Evil(),
    Unknown,
    EvilModel(),
]
HOSTILE += [ExplosiveMapping(a=1), Loud("x"), lambda: 1, sys, msgspec.Raw(b"{"), memoryview(b"x"), Ellipsis]
HOSTILE_LEAVES = (
    # By index, because Hypothesis would ask the values themselves for their repr.
    st.integers(0, len(HOSTILE) - 1).map(lambda index: HOSTILE[index])
    | st.builds(Explosive, st.sampled_from([ValueError, KeyError, AttributeError, RecursionError, StopIteration]))
    | SCALARS
)
HOSTILE_VALUES = st.recursive(
    HOSTILE_LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()) | st.floats(), inner)
        | st.tuples(inner, inner)
        | st.builds(Line, sku=inner, cents=inner)
        | st.builds(Point, inner, inner)
        | st.builds(lambda content: Box[Any].model_construct(content=content), inner)
    ),
    max_leaves=15,
)


@pytest.mark.filterwarnings("error")
@PATIENT
@given(
    value=HOSTILE_VALUES, annotation=st.sampled_from([Any, int, Order, Line, Person, Point, list[int], Box[int], str])
)
def test_no_value_makes_encoding_raise_anything_else(value: Any, annotation: Any) -> None:
    task = taking(annotation)
    for call in (
        lambda: task.decode(task.encode((value,), {})),
        lambda: task.decode_result(task.encode_result(value)),
        lambda: decode_any(check_payload({"value": value})),
    ):
        error = raised(call)
        assert error is None or isinstance(error, InvalidPayload)
        assert SECRET not in "".join(traceback.format_exception(error, limit=0))


@PATIENT
@given(payload=st.text() | st.binary() | st.from_regex(r'\{"value":[\[\]{}",:0-9a-z\\]*\}'))
def test_no_payload_makes_decoding_raise_anything_else(payload: str | bytes) -> None:
    for decode in (taking(Order).decode, ANYTHING.decode, ANYTHING.decode_result, decode_any):
        error = raised(functools.partial(decode, payload))
        assert error is None or isinstance(error, InvalidPayload)


@PATIENT
@given(arguments=st.dictionaries(st.text(), JSON_VALUES, max_size=5), order=st.randoms(use_true_random=False))
def test_a_fingerprint_does_not_depend_on_order_or_spacing(arguments: dict[str, Any], order: Any) -> None:
    shuffled = list(arguments.items())
    order.shuffle(shuffled)
    payload, other = (msgspec.json.encode(value).decode() for value in (arguments, dict(shuffled)))
    assert len(fingerprint(payload)) == 16
    assert fingerprint(payload) == fingerprint(other) == fingerprint(msgspec.json.format(other, indent=3))


@PATIENT
@given(first=JSON_VALUES, second=JSON_VALUES)
def test_different_arguments_have_different_fingerprints(first: Any, second: Any) -> None:
    payloads = [check_payload({"value": value}) for value in (first, second)]
    canonical = [msgspec.json.encode(value, order="deterministic") for value in (first, second)]
    assert (fingerprint(payloads[0]) == fingerprint(payloads[1])) == (canonical[0] == canonical[1])


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    assert fingerprint('{"b":2,"a":1}') == fingerprint('{ "a": 1, "b": 2 }')
    assert fingerprint('{"a":1}').hex() == "2c6b113b8dd15ffbded9860b43eb0c6c"
    assert fingerprint('{"a":1}') != fingerprint('{"a":"1"}')
    assert "can't be read" in refusal(lambda: fingerprint("{"))


def test_signatures_are_safe_to_use_first_from_many_threads() -> None:
    async def encode_everywhere() -> list[str]:
        fresh = signature(typed)
        arguments = {"orders": [], "when": NOON, "key": UUID_VALUE}
        return await asyncio.gather(*(asyncio.to_thread(fresh.encode, (), arguments) for _ in range(8)))

    assert len(set(asyncio.run(encode_everywhere()))) == 1


def test_equal_sets_have_equal_payloads_in_every_process() -> None:
    program = (
        "from holdfast.signature import Signature\n"
        "def task(names: set[str]) -> None: ...\n"
        "print(Signature(task, task='task', bind=False).encode((set('abcdefgh'),), {}))"
    )
    payloads = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(payloads) == 1
