"""What an error of the driver means: was anything written, and is it worth trying again?"""

from __future__ import annotations

import ssl
from enum import Enum

import asyncpg

from holdfast.errors import (
    HoldfastError,
    InvalidPayload,
    InvalidURL,
    OutcomeUnknown,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)


class Fault(Enum):
    """What is to be done about an error."""

    AGAIN = "nothing was written, and it may well work now"
    LATER = "nothing was written, and the database can't be used for the moment"
    LOST = "the connection is gone, and nobody knows how far it came"
    FINAL = "it would fail again"


class NoConnection(Exception):
    """No connection could be had, so nothing was sent."""


class NotCommitted(Exception):
    """The connection was lost before the transaction was to be committed."""


class Overtaken(Exception):
    """Somebody else was faster with what this transaction had found free. It must look again."""


_AGAIN = {"40001", "40P01"}  # serialization failure, deadlock
_LATER = {"57P03", "53300", "53400"}  # starting or stopping, too many connections, configured limit
_LOST = {"57P01", "57P02", "57P05", "25P03"}  # terminated, crashed, idle too long


def judge(error: BaseException) -> Fault:
    """Of an error that came while a statement was under way."""
    if isinstance(error, NotCommitted):
        return Fault.LATER
    if isinstance(error, NoConnection):
        return Fault.FINAL if _is_hopeless(error.__cause__) else Fault.LATER
    if isinstance(error, Overtaken | asyncpg.InvalidCachedStatementError | asyncpg.OutdatedSchemaCacheError):
        return Fault.AGAIN
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        if state in _AGAIN:
            return Fault.AGAIN
        if state in _LATER:
            return Fault.LATER
        return Fault.LOST if state in _LOST or state.startswith("08") else Fault.FINAL
    if isinstance(error, OSError | TimeoutError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return Fault.LOST
    return Fault.FINAL


def _is_hopeless(error: BaseException | None) -> bool:
    """Waiting would not help: the URL is wrong, the server knows us not, or we have waited long enough."""
    state = getattr(error, "sqlstate", None) or ""
    return isinstance(error, HoldfastError | ValueError | ssl.SSLError) or state.startswith(("28", "3D", "42"))


def is_read_only(error: BaseException) -> bool:
    return getattr(error, "sqlstate", None) == "25006"


def is_unreadable(error: BaseException | None) -> bool:
    """A value in the database is not what it was taken for, or more than the server can look into."""
    return (getattr(error, "sqlstate", None) or "").startswith(("22", "54"))


def translate(error: BaseException, where: str) -> HoldfastError:
    """An error for the caller, that says what to do. Nothing was written."""
    if isinstance(error, HoldfastError):
        return error
    is_connecting = isinstance(error, NoConnection)
    if isinstance(error, NoConnection | NotCommitted) and error.__cause__ is not None:
        error = error.__cause__
        if isinstance(error, HoldfastError):
            return error
    answer = (_unconnected(error, where) if is_connecting else None) or _translated(error, where)
    answer.__cause__ = error
    return answer


def _unconnected(error: BaseException, where: str) -> HoldfastError | None:
    """What is wrong with the way to the database, if that is it."""
    state = getattr(error, "sqlstate", None) or ""
    if state in ("42704", "22023"):
        return InvalidURL(f"{where}: {error}. Neither Holdfast nor the server knows what the URL says; correct it.")
    if isinstance(error, OSError) and "SSL" not in str(error):
        said = str(error) or "nobody answers"
        return StoreUnavailable(
            f"{where} can't be reached ({said}). Check that the server runs, and the host and port of the URL; nothing "
            "was written."
        )
    return None


def _translated(error: BaseException, where: str) -> HoldfastError:
    state = getattr(error, "sqlstate", None) or ""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state == "57014":
        return StoreUnavailable(
            f"{where}: a statement was stopped because it took too long ({said}). Nothing was written; try again, "
            "and look for locks and load if it happens often."
        )
    if state == "55P03":
        return StoreUnavailable(
            f"{where}: another transaction holds what this one needs ({said}). Nothing was written; try again."
        )
    if state.startswith("28"):
        return StoreUnavailable(f"{where}: the server lets this user not in ({said}). Check user and password.")
    if state == "3D000":
        return StoreUnavailable(f"{where}: {said}. Create it, or correct the URL.")
    if state == "53100":
        return StoreUnavailable(f"{where}: the server's disk is full ({said}). Nothing was written; make room there.")
    if state == "25006":
        return StoreUnavailable(
            f"{where}: this server takes no writes ({said}). It may be a standby; point the URL at the primary."
        )
    if state == "42501":
        return StoreError(
            f"{where}: the role of this connection lacks a right ({said}). Grant it, or run `holdfast db migrate` "
            "with a role that owns the schema."
        )
    if state in ("22000", "22021", "22P05", "22P02", "22003", "22007", "22030"):
        return InvalidPayload(f"PostgreSQL can't keep this value: {said}.")
    if state in ("3F000", "42P01", "42883", "42703", "42704"):
        return SchemaMismatch(
            f"{where}: Holdfast's tables are not as they should be ({said}). Run `holdfast db check` to see how."
        )
    if isinstance(error, ssl.SSLError) or "SSL" in said:
        return StoreUnavailable(f"{where}: no encrypted connection ({said}). Check sslmode and certificates.")
    if isinstance(error, asyncpg.ClientConfigurationError) or (
        isinstance(error, ValueError) and not isinstance(error, UnicodeError)
    ):
        return StoreUnavailable(f"{where}: the URL can't be used ({said}). Correct it.")
    if state.startswith(("08", "53", "57", "58", "40", "25")) or judge(error) in (Fault.LOST, Fault.LATER):
        return StoreUnavailable(f"{where}: {said}. Nothing was written; it is safe to try again.")
    return StoreError(f"{where}: the database refused ({said}). Nothing was written.")


def unknown(error: BaseException, where: str, advice: str) -> OutcomeUnknown:
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    answer = OutcomeUnknown(f"{where}: the connection was lost before an answer came ({said}). {advice}")
    answer.__cause__ = error
    return answer
