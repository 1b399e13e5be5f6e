from __future__ import annotations

import inspect
import pickle
import re
from uuid import UUID

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError, IdempotencyConflict, JobFailed, NotAllowedInState, OutcomeUnknown, QueueFull

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HoldfastError)]
GROUPS = {"HoldfastError", "ConfigurationError", "StoreError", "SchemaMismatch"}
"""Only caught, never raised: what to do is for their members to say."""

JOB = UUID("01890000-0000-7000-8000-000000000001")


def drawn_tree() -> dict[str, str | None]:
    """The tree in the module's docstring: each name with the one it hangs from."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]
        drawn = re.match(r"\s*([│├└─ ]*)([A-Z]\w+)(\s{2,}.*)?$", line)
        if drawn is None:
            continue
        depth = len(drawn[1]) // 4
        parents[drawn[2]] = above[depth - 1] if depth else None
        above[depth:] = [drawn[2]]
    return parents


def real_tree() -> dict[str, str | None]:
    return {
        kind.__name__: next((base.__name__ for base in kind.__bases__ if issubclass(base, HoldfastError)), None)
        for kind in ERRORS
    }


def test_the_tree_is_drawn_as_it_is() -> None:
    assert drawn_tree() == real_tree()


def test_the_tree_is_drawn_in_the_order_of_the_file() -> None:
    assert list(drawn_tree()) == [kind.__name__ for kind in ERRORS]


@pytest.mark.parametrize("kind", ERRORS)
def test_the_docstring_is_the_default_message(kind: type[HoldfastError]) -> None:
    assert kind.__doc__
    assert str(kind()) == inspect.cleandoc(kind.__doc__)


@pytest.mark.parametrize("kind", ERRORS)
def test_a_message_of_its_own_replaces_the_default(kind: type[HoldfastError]) -> None:
    assert str(kind("The disk is full. Make room.")) == "The disk is full. Make room."


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind.__name__ not in GROUPS])
def test_the_default_message_says_what_happened_and_then_what_to_do(kind: type[HoldfastError]) -> None:
    happened, *to_do = re.split(r"(?<=[.;])\s+", str(kind()))
    assert happened
    assert to_do, f"{kind.__name__} says what happened and stops there"


@pytest.mark.parametrize("kind", ERRORS)
def test_a_message_is_made_of_whole_sentences(kind: type[HoldfastError]) -> None:
    assert re.match(r"[A-Z`].*\.$", str(kind()), re.DOTALL)


@pytest.mark.parametrize(
    "error",
    [
        *(kind() for kind in ERRORS),
        QueueFull("Full.", queue="mail", retry_after=2.5),
        IdempotencyConflict(existing=JOB),
        OutcomeUnknown(ids=[JOB]),
        NotAllowedInState(state="active"),
        JobFailed(id=JOB, error_type="KeyError", error_message="'id'", traceback="…"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_way_to_another_process(error: HoldfastError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidOption", ValueError),
        ("InvalidTask", TypeError),
        ("InvalidURL", ValueError),
        ("MissingDriver", ImportError),
        ("RunningLoop", RuntimeError),
        ("InvalidPayload", ValueError),
        ("UnknownTask", LookupError),
        ("JobNotFound", LookupError),
        ("ResultTimeout", TimeoutError),
    ],
)
def test_who_does_not_know_holdfast_can_catch_the_builtin(name: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), builtin)
