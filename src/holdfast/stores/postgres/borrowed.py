"""Enqueuing inside a transaction of the caller's, on the caller's own connection.

One statement does it, so that any driver will do. What it refuses it returns, and the transaction stays usable;
if it fails, the transaction is the caller's to roll back.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn, Protocol

from holdfast.errors import HoldfastError, InvalidOption, StoreError, StoreUnavailable, WrongDatabase
from holdfast.stores.postgres.statements import statement

_recognised: weakref.WeakSet[Any] = weakref.WeakSet()
"""Connections that were seen to have Holdfast's functions: calling one that is not there would end the transaction."""


class Borrowed(Protocol):
    """A connection of the caller's. Both verbs take what holdfast.enqueue takes, and return its answer."""

    def enqueue(self, jobs: str, options: str) -> str: ...
    async def aenqueue(self, jobs: str, options: str) -> str: ...


class SyncBorrowed:
    """A connection that blocks the thread that uses it."""

    def __init__(self, ask: Callable[..., Any], connection: Any, places: tuple[str, str] = ("%s", "%s")) -> None:
        """`ask` returns the one value that a statement answers with; `places` is how the driver writes parameters."""
        self._ask = ask
        self._connection = connection
        self._statement = _enqueue_statement(places)

    def enqueue(self, jobs: str, options: str) -> str:
        with explained():
            if self._connection not in _recognised:
                _recognise(self._connection, self._ask(statement("recognise")))
            return _read(self._ask(self._statement, _ascii(jobs), _ascii(options)))

    async def aenqueue(self, jobs: str, options: str) -> str:
        return self.enqueue(jobs, options)


class AsyncBorrowed:
    """A connection that must be awaited."""

    def __init__(
        self, ask: Callable[..., Awaitable[Any]], connection: Any, places: tuple[str, str] = ("%s", "%s")
    ) -> None:
        self._ask = ask
        self._connection = connection
        self._statement = _enqueue_statement(places)

    def enqueue(self, jobs: str, options: str) -> str:
        refuse_async()

    async def aenqueue(self, jobs: str, options: str) -> str:
        with explained():
            if self._connection not in _recognised:
                _recognise(self._connection, await self._ask(statement("recognise")))
            return _read(await self._ask(self._statement, _ascii(jobs), _ascii(options)))


def _enqueue_statement(places: tuple[str, str]) -> str:
    return statement("enqueue_in").replace("$1", places[0]).replace("$2", places[1])


def _recognise(connection: Any, answer: object) -> None:
    if answer is None:
        raise StoreError(
            "The role of the connection given as tx= may not use the schema holdfast. Nothing was written; grant it "
            "the rights of a producer."
        )
    if not answer:
        raise WrongDatabase
    with suppress(TypeError):  # what can't be remembered is asked again
        _recognised.add(connection)


# ── texts, whatever the encoding of the connection ───────────────────────────────────────────────────────────────────

_OTHER: Final = re.compile(r"[^\x00-\x7f]")


def _ascii(json: str) -> str:
    """The same JSON in characters that every connection can carry."""
    return json if json.isascii() else _OTHER.sub(_escape, json)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _read(answer: str | bytes) -> str:
    digits = answer if isinstance(answer, str) else bytes(answer).decode()
    return bytes.fromhex(digits).decode()


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_FAILED: Final = "tx= is a transaction that has failed already. Roll it back, and begin anew."
_AWAY: Final = ("08", "40", "53", "55", "57", "58")
_AWAY_ERRORS: Final = {"OperationalError", "InterfaceError", "OSError", "TimeoutError"}
_FAILED_ERRORS: Final = {"TransactionManagementError", "PendingRollbackError"}


def refuse_autocommit(instead: str) -> NoReturn:
    raise InvalidOption(f"tx= has no transaction open, so there is nothing to join. Open one first: {instead}.")


def refuse_closed() -> NoReturn:
    raise InvalidOption("tx= is a connection that is closed. Pass the one that your transaction runs on.")


def refuse_failed() -> NoReturn:
    raise InvalidOption(_FAILED)


def refuse_async() -> NoReturn:
    raise InvalidOption("tx= is an asynchronous connection. Use `await aenqueue(…)`, or its like, with it.")


@contextmanager
def explained() -> Iterator[None]:
    """Say what an error of the caller's driver means."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise _explain(error) from error


def _explain(error: Exception) -> HoldfastError:
    # SQLAlchemy and Django wrap the driver's error; the wrapped text is the one without the caller's arguments in it.
    original = getattr(error, "orig", None) or error.__cause__ or error
    state = next(filter(None, (_state(each) for each in (original, original.__cause__, error))), "")
    said = next(iter(str(original).strip().splitlines()), type(original).__name__)
    kinds = {kind.__name__ for kind in (*type(error).__mro__, *type(original).__mro__)}
    if state == "25P02" or kinds & _FAILED_ERRORS:
        return InvalidOption(_FAILED)
    if "InvalidRequestError" in kinds:  # SQLAlchemy: closed, without an engine, not begun
        return InvalidOption(f"tx= can't be used here: {said.removesuffix('.')}. Pass what your transaction runs on.")
    if state == "25006":
        return InvalidOption("tx= is a transaction that may only read. Roll it back, and open one that may write.")
    if state == "42501":
        return StoreError(
            f"The role of the connection given as tx= lacks a right ({said}). Roll the transaction back, and grant it "
            "the rights of a producer."
        )
    if state.startswith(_AWAY) or (not state and kinds & _AWAY_ERRORS):
        return StoreUnavailable(
            f"The enqueue failed on the connection given as tx= ({said}). Roll the transaction back, and try it again."
        )
    return StoreError(f"The enqueue failed on the connection given as tx= ({said}). Roll the transaction back.")


def _state(error: BaseException | None) -> str | None:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
