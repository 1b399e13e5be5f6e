"""What came of a run: exceptions as text, also those that don't want to be text."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from holdfast import Cancel, GiveUp, Holdfast, RateLimited, Retry, Snooze, SoftTimeout, TryAgain
from holdfast.errors import InvalidPayload
from holdfast.job import LONGEST_MESSAGE, LONGEST_TRACEBACK, Failure, FailureKind
from holdfast.outcome import Interrupted, Outcome, Raised, Verdict, Withdrawn
from holdfast.worker import runs
from holdfast.worker.recorder import Place
from holdfast.worker.runs import Plan, Run, failure_of, outcome_of
from tests.unit.claims import claimed_job

NOW = datetime(2030, 1, 1, tzinfo=UTC)

hf = Holdfast("memory://")


@hf.task(soft_timeout="3s", timeout="5s", retry=Retry(never_on=[LookupError]))
async def anything() -> None: ...


def run() -> Run:
    run = Run(claimed_job(), Plan(anything), Place.LOOP, 0, 0)
    run.begin_at(1.0)
    return run


def raised(error: BaseException) -> Raised:
    """What is made of an exception that a task has raised."""
    try:
        raise error
    except BaseException as caught:
        outcome = outcome_of(run(), caught, NOW)
    assert isinstance(outcome, Raised)
    check_storable(outcome.failure)
    return outcome


def check_storable(failure: Failure) -> None:
    """Any database can keep it."""
    for text in (failure.error_type, failure.message, failure.traceback or ""):
        assert isinstance(text, str)
        assert "\0" not in text
        text.encode()
    assert len(failure.message) <= LONGEST_MESSAGE
    assert len(failure.traceback or "") <= LONGEST_TRACEBACK
    msgspec.json.encode(failure)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "verdict", "kind", "delay"),
    [
        (ValueError("x"), Verdict.TRANSIENT, FailureKind.ERROR, None),
        (KeyError("x"), Verdict.PERMANENT, FailureKind.ERROR, None),
        (SystemExit(3), Verdict.TRANSIENT, FailureKind.ERROR, None),
        (KeyboardInterrupt(), Verdict.TRANSIENT, FailureKind.ERROR, None),
        (GeneratorExit(), Verdict.TRANSIENT, FailureKind.ERROR, None),
        (MemoryError(), Verdict.TRANSIENT, FailureKind.ERROR, None),
        (asyncio.CancelledError(), Verdict.TRANSIENT, FailureKind.ERROR, None),
        (SoftTimeout(), Verdict.TRANSIENT, FailureKind.TIMEOUT, None),
        (BaseExceptionGroup("of a task group", [SoftTimeout()]), Verdict.TRANSIENT, FailureKind.TIMEOUT, None),
        (GiveUp("no"), Verdict.PERMANENT, FailureKind.GAVE_UP, None),
        (InvalidPayload("no"), Verdict.PERMANENT, FailureKind.INVALID, None),
        (Cancel("no"), Verdict.CANCEL, FailureKind.ERROR, None),
        (Snooze("30s"), Verdict.SNOOZE, FailureKind.WAITED, timedelta(seconds=30)),
        (TryAgain("30s"), Verdict.AGAIN, FailureKind.ERROR, timedelta(seconds=30)),
        (RateLimited("17"), Verdict.THROTTLED, FailureKind.WAITED, timedelta(seconds=17)),
        (ExceptionGroup("both", [ValueError(), KeyError()]), Verdict.PERMANENT, FailureKind.ERROR, None),
    ],
    ids=repr,
)
def test_every_exception_has_its_verdict(
    error: BaseException, verdict: Verdict, kind: FailureKind, delay: timedelta | None
) -> None:
    outcome = raised(error)
    assert (outcome.verdict, outcome.failure.kind, outcome.delay) == (verdict, kind, delay)


def test_a_soft_timeout_with_other_errors_is_told_as_those() -> None:
    outcome = raised(BaseExceptionGroup("while cleaning up", [SoftTimeout(), ValueError("x")]))
    assert outcome.failure.kind is FailureKind.ERROR


@pytest.mark.parametrize("error", [SoftTimeout(), BaseExceptionGroup("of a task group", [SoftTimeout()])], ids=repr)
def test_a_soft_timeout_is_called_one_also_if_a_task_group_has_wrapped_it(error: BaseException) -> None:
    assert raised(error).failure.error_type == "SoftTimeout"


def test_a_soft_timeout_tells_the_limit() -> None:
    assert raised(SoftTimeout()).failure.message == "Its soft timeout of 3 s was over."


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (lambda it: it.cancel("not wanted"), Withdrawn("not wanted")),
        (lambda it: it.interrupt(), Interrupted()),
    ],
)
def test_a_cancellation_that_was_asked_for_is_told_as_that(stop: Callable[[Run], None], expected: Outcome) -> None:
    it = run()
    stop(it)
    assert outcome_of(it, asyncio.CancelledError(), NOW) == expected


def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    assert raised(asyncio.CancelledError("its own")).failure.error_type == "CancelledError"


def test_the_first_reason_to_stop_counts() -> None:
    it = run()
    it.cancel("first")
    it.interrupt()
    assert outcome_of(it, asyncio.CancelledError(), NOW) == Withdrawn("first")


# ── as text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_traceback_begins_in_the_task() -> None:
    def inner() -> NoReturn:
        raise ValueError("here")

    def outer() -> None:
        inner()

    failure = failure_of(_caught(outer), FailureKind.ERROR)
    assert failure.traceback is not None
    assert failure.traceback.startswith("Traceback (most recent call last):\n")
    assert "in inner" in failure.traceback
    assert failure.traceback.endswith("ValueError: here\n")


def test_a_traceback_is_what_python_itself_would_print_also_when_the_same_place_fails_again() -> None:
    def check(text: str) -> int:
        if text == "note":
            error = ValueError("noted")
            error.add_note("and more")
            raise error
        if text == "cause":
            try:
                int("x")
            except ValueError as cause:
                raise LookupError(text) from cause
        if text == "group":
            raise ExceptionGroup(text, [ValueError(1), LookupError(2)])
        return len(text) + int(text)

    def many(depth: int) -> int:
        return many_more(depth - 1) if depth else check("x")

    def many_more(depth: int) -> int:
        return many(depth - 1) if depth else check("y")

    calls: list[Callable[[], object]] = [
        *[lambda text=text: check(text) for text in ("x", "y", "note", "cause", "group")],
        lambda: many(4),
        lambda: many(30),
    ]
    for call in [*calls, *calls]:
        error = _caught(call)
        assert failure_of(error, FailureKind.ERROR).traceback == "".join(traceback.format_exception(error))


def test_places_that_have_failed_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Any, str] = {}
    monkeypatch.setattr(runs, "_frames", known)
    for number in range(1200):
        space: dict[str, Any] = {}
        exec(compile("def fail():\n    raise ValueError\n", f"file-{number}", "exec"), space)  # noqa: S102
        assert f"file-{number}" in (failure_of(_caught(space["fail"]), FailureKind.ERROR).traceback or "")
    assert 0 < len(known) <= 1000


def test_no_frame_of_the_machinery_is_shown_but_those_of_a_user_whose_folder_has_the_same_name(tmp_path: Path) -> None:
    folder = tmp_path / "holdfast" / "worker"
    folder.mkdir(parents=True)
    file = folder / "tasks.py"
    file.write_text("def mine():\n    raise ValueError('here')\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)  # noqa: S102
    failure = failure_of(_caught(space["mine"]), FailureKind.ERROR)
    assert "in mine" in (failure.traceback or "")
    ours = failure_of(_caught(lambda: Plan(None)), FailureKind.ERROR)  # type: ignore[arg-type]
    assert "worker/runs.py" not in (ours.traceback or "")


def _caught(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_wait_has_no_traceback() -> None:
    assert raised(Snooze("1s")).failure.traceback is None


def test_a_deep_recursion_is_cut() -> None:
    def deep() -> None:
        deep()

    failure = failure_of(_caught(deep), FailureKind.ERROR)
    assert failure.error_type == "RecursionError"
    assert len((failure.traceback or "").splitlines()) < 200


# ── evil exceptions ──────────────────────────────────────────────────────────────────────────────────────────────────


class EvilText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class EvilRepr(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr for you")


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Interrupts(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Recurses(Exception):
    def __str__(self) -> str:
        return str(self)


class Text(str):
    """A text that is none when it is looked at."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        return 5

    def encode(self, *_: Any) -> Any:
        raise RuntimeError("no bytes for you")


class OddText(Exception):
    def __str__(self) -> str:
        return Text("odd")


class Named(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise RuntimeError("no name for you")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Named):
    pass


class Liar(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class for you")


class Pretender(Exception):
    """Says that it is a soft timeout."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return SoftTimeout


class EvilGroup(BaseExceptionGroup[BaseException]):
    def split(self, *_: Any) -> Any:
        raise RuntimeError("no parts for you")


class Careless(RateLimited):
    def __init__(self) -> None:
        """Says nothing to its parent."""


class CarelessSnooze(Snooze):
    def __init__(self) -> None:
        self.delay = "soon"  # type: ignore[assignment]


class EndlessSnooze(Snooze):
    def __init__(self) -> None:
        self.delay = timedelta.max


class BackwardSnooze(Snooze):
    def __init__(self) -> None:
        self.delay = timedelta(days=-1)


def _nameless() -> BaseException:
    return Nameless("x")


def _cyclic() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    first.__context__ = first
    return first


def _chain(length: int) -> BaseException:
    error: BaseException = ValueError("0")
    for number in range(1, length):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer
    return error


def _nested(depth: int) -> BaseException:
    error: Exception = ValueError("innermost")
    for _ in range(depth):
        error = ExceptionGroup("around", [error])
    return error


def _with_notes() -> BaseException:
    error = ValueError("x")
    error.__notes__ = 5  # type: ignore[assignment]
    return error


EVIL: list[Callable[[], BaseException]] = [
    EvilText,
    EvilRepr,
    NotText,
    Exits,
    Interrupts,
    Recurses,
    OddText,
    _nameless,
    Liar,
    Pretender,
    Careless,
    CarelessSnooze,
    EndlessSnooze,
    BackwardSnooze,
    _cyclic,
    _with_notes,
    lambda: EvilGroup("x", [ValueError("y")]),
    lambda: _chain(3000),
    lambda: _nested(50),
    lambda: _nested(5000),
    lambda: ExceptionGroup("wide", [ValueError(str(number)) for number in range(5000)]),
    lambda: ValueError("x" * 10_000_000),
    lambda: ValueError("lone \ud800 surrogate and \0"),
    lambda: ValueError(b"\xff", object(), EvilRepr()),
    lambda: SyntaxError("bad", ("file\ud800", -5, -7, None)),
    lambda: UnicodeDecodeError("utf-8", b"\xff" * 100, 0, 1, "why not"),
    lambda: type("Ё" * 1000, (Exception,), {})("long name"),
]


@pytest.mark.parametrize("make", EVIL)
def test_whatever_a_task_raises_becomes_a_failure_that_can_be_stored(make: Callable[[], BaseException]) -> None:
    outcome = raised(make())
    assert outcome.failure.message or outcome.failure.error_type
    assert outcome.delay is None or timedelta(0) <= outcome.delay <= timedelta(days=3650)


@pytest.mark.parametrize("make", EVIL)
def test_whatever_causes_what_a_task_raises(make: Callable[[], BaseException]) -> None:
    error = ValueError("outer")
    error.__cause__ = make()
    assert raised(error).failure.message == "outer"


def test_a_huge_message_keeps_its_beginning_and_a_huge_traceback_its_end() -> None:
    failure = raised(ValueError("begin" + "x" * 10_000_000)).failure
    assert failure.message.startswith("begin")
    assert len(failure.message) == LONGEST_MESSAGE
    assert len(failure.traceback or "") == LONGEST_TRACEBACK


# ── of who was asked to stop ──────────────────────────────────────────────────────────────────────────────────────────


INSTEAD: list[Callable[[], BaseException]] = [
    asyncio.CancelledError,
    lambda: ConnectionError("the driver has lost its connection"),
    lambda: KeyError("on the list of what is never retried"),
    lambda: BaseExceptionGroup("of a task group", [asyncio.CancelledError(), ValueError("while cleaning up")]),
    SoftTimeout,
    SystemExit,
    lambda: TryAgain("30s"),
    lambda: EvilGroup("x", [ValueError("y")]),
    CarelessSnooze,
    lambda: Liar("x"),
]
"""What comes of a cancellation on its way out of a task."""


@pytest.mark.parametrize("make", INSTEAD)
def test_who_was_asked_to_stop_has_stopped_whatever_it_raised(make: Callable[[], BaseException]) -> None:
    interrupted, withdrawn, overrun = run(), run(), run()
    interrupted.interrupt()
    withdrawn.cancel("not wanted")
    overrun.overrun()
    assert outcome_of(interrupted, make(), NOW) == Interrupted()
    assert outcome_of(withdrawn, make(), NOW) == Withdrawn("not wanted")
    outcome = outcome_of(overrun, make(), NOW)
    assert isinstance(outcome, Raised)
    assert (outcome.failure.kind, outcome.failure.error_type) == (FailureKind.TIMEOUT, "HardTimeout")


@pytest.mark.parametrize(
    "error",
    [GiveUp("no"), Cancel("no"), Snooze("30s"), RateLimited("17"), BaseExceptionGroup("of a group", [GiveUp("no")])],
    ids=repr,
)
def test_who_was_interrupted_may_still_say_what_is_to_become_of_its_job(error: BaseException) -> None:
    it = run()
    it.interrupt()
    assert outcome_of(it, error, NOW) == outcome_of(run(), error, NOW)


@pytest.mark.parametrize("error", [GiveUp("no"), Cancel("no"), Snooze("30s")], ids=repr)
def test_who_was_cancelled_by_a_person_or_has_overrun_its_time_has_no_say(error: BaseException) -> None:
    withdrawn, overrun = run(), run()
    withdrawn.cancel("not wanted")
    overrun.overrun()
    assert outcome_of(withdrawn, error, NOW) == Withdrawn("not wanted")
    outcome = outcome_of(overrun, error, NOW)
    assert isinstance(outcome, Raised)
    assert outcome.failure.error_type == "HardTimeout"
