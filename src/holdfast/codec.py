"""JSON that both ends agree on: what is written here can be read back, or it is refused with a reason.

Payloads and results are bounded in size and in depth, hold no number that another language would read differently
(NaN, infinities, integers beyond 64 bits), and no message about them shows a value, because values may be secret.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidOption, InvalidPayload, PayloadTooLarge

__all__ = ["PayloadLimits", "check_payload", "decode_any", "fingerprint"]

DEEPEST = 256  # well below the interpreter's recursion limit, so that depth is always refused by us and not by chance


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """Bounds of what a job may carry: bytes of its arguments, bytes of its result, and nesting of both."""

    payload: int = 256 * 1024
    result: int = 256 * 1024
    depth: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise InvalidOption(f"PayloadLimits: {field.name} must be a whole number of at least 1.")
        if self.depth > DEEPEST:
            raise InvalidOption(f"PayloadLimits: depth can be {DEEPEST} at most. Pass flatter data.")


class Refused(ValueError):
    """Why JSON could not be written or read, in words that hold no value. `path` is where, such as `lines[0].price`."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_json(value: Any, depth: int) -> bytes:
    """The JSON of a value within all limits but that of size, or Refused: no other exception, whatever the value does.

    Never asks a value for its `repr` or `str`.
    """
    try:
        try:
            encoded = _steady_encoder.encode(value)
        except Exception:
            encoded = _encoder.encode(value)
        _guard(encoded, depth)
        if b"null" in encoded:
            _refuse_hidden_numbers(value, encoded)
    except Exception as error:
        problem = _writing_problem(error, value)
    else:
        return encoded
    # Raised outside the handler: a chained exception would carry the value into tracebacks and error trackers.
    raise Refused(problem)


def is_unsuspicious(encoded: bytes) -> bool:
    """Whether JSON of fewer bytes than two for each level allowed needs no closer look.

    No null can stand for a NaN in it, and no number can be too long. It is too short to be too deep.
    """
    # find() is twice as fast as the operator `in`, which takes bytes for a number first.
    if encoded.find(b"null") >= 0:
        return False
    return len(encoded) < 19 or encoded.translate(_DIGITS_AS_ZEROS).find(_LONG_NUMBER) < 0


def write_arguments(subject: str, arguments: Mapping[str, Any], limits: PayloadLimits) -> bytes:
    """The JSON object of these arguments within all limits, or InvalidPayload that names the argument at fault."""
    try:
        encoded = write_json(arguments, limits.depth)
    except Refused as refused:
        problem = refused.problem
    else:
        if len(encoded) > limits.payload:
            raise PayloadTooLarge(
                f"{subject}: the arguments are {len(encoded):,} bytes of JSON, the limit is {limits.payload:,}. "
                "Store the data elsewhere and pass its id."
            )
        return encoded
    for name, value in arguments.items():
        try:
            write_json(value, limits.depth - 1)
        except Refused as refused:
            raise InvalidPayload(f"{subject}: argument {shown(name)}: {refused.problem}.") from None
    raise InvalidPayload(f"{subject}: arguments: {problem}.")


def type_name(value: object) -> str:
    """The name of a value's type, without running code of that type."""
    # A metaclass may define __name__ as it likes; the slot of `type` itself can't be overridden.
    return cast("str", type.__dict__["__name__"].__get__(type(value)))


def shown(name: str) -> str:
    """A name for a message: itself when it is an identifier, else quoted and cut, since it may come from outside."""
    plain = str.__str__(name)  # a subclass may show itself as it likes
    return plain if plain.isidentifier() and len(plain) <= 80 else repr(plain[:80])


def is_pydantic_model(kind: object) -> bool:
    """Whether this is a pydantic model. Never imports pydantic: where there is a model, it was imported already."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and isinstance(kind, type) and base in kind.__mro__


def _encode_other(value: Any) -> Any:
    kind = type(cast("object", value))
    if kind in _NEVER_KEYS:
        raise Refused(f"{type_name(value)} can't be the key of a dictionary in JSON; use text")
    # msgspec writes only the exact types. The slots of the base are used, since a subclass may override its own.
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, int):
        return int.__int__(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if is_pydantic_model(kind):
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
    raise Refused(f"{type_name(value)} can't be stored as JSON; pass an id or plain data")


_NEVER_KEYS = (type(None), bool, tuple, frozenset)  # written by msgspec itself as values, so only met as keys
_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
# In a fixed order, since sets come in another one in every process, and equal calls must have equal payloads. It
# can't sort dictionaries whose keys are no texts.
_steady_encoder = msgspec.json.Encoder(enc_hook=_encode_other, order="deterministic")
encode_json = _steady_encoder.encode


def _writing_problem(error: Exception, value: object) -> str:
    match error:
        case Refused():
            return error.problem
        case RecursionError():
            return "it is nested too deeply or contains itself; pass an id or plain data"
        case UnicodeError():
            return "a text in it has a lone surrogate, which is not valid Unicode"
        case ValueError() if type(error) is ValueError and str(error).startswith("Exceeds the limit"):
            return "an integer in it is beyond 64 bits; pass it as text"
        case _:
            return f"{type_name(value)} can't be stored as JSON ({type_name(error)}); pass an id or plain data"


def _refuse_hidden_numbers(value: Any, encoded: bytes) -> None:
    """Refuse NaN and infinities, which were written as null."""
    if type(value) is dict:
        # Every None among the arguments is one null, so an equal count leaves none for a NaN: no need to look further.
        plain = cast("dict[str, Any]", value)
        if encoded.count(b"null") == sum(1 for argument in plain.values() if argument is None):
            return
    pending = [msgspec.to_builtins(value, enc_hook=_encode_other, str_keys=True)]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(cast("dict[str, Any]", item).values())
        elif isinstance(item, list | tuple | set | frozenset):
            pending.extend(cast("list[Any]", item))
        elif isinstance(item, float) and item - item != 0.0:  # true for NaN and both infinities only
            raise Refused("NaN and infinity don't exist in JSON; pass None or a text")


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_json(decoder: msgspec.json.Decoder[Any], payload: str | bytes, depth: int) -> Any:
    """The decoded value, or Refused: no other exception, whatever came in and whatever the types do with it."""
    try:
        encoded = payload.encode() if isinstance(payload, str) else payload
        _guard(encoded, depth)
        return decoder.decode(encoded)
    except Exception as error:
        refused = reading_problem(error)
    raise refused


_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$")  # how msgspec ends its messages


def reading_problem(error: Exception) -> Refused:
    """What went wrong while decoding, with its path and without the value that msgspec and pydantic would show."""
    if isinstance(error, Refused):
        return Refused(error.problem, error.path)
    if isinstance(error, RecursionError):
        return Refused("it is nested too deeply")
    if isinstance(error, UnicodeError):
        return Refused("it is not valid Unicode")
    if type(error) is msgspec.DecodeError:
        return Refused("it is not valid JSON")
    if not isinstance(error, msgspec.ValidationError):
        return Refused(f"refused by its type with {type_name(error)}")
    message = str(error)
    place = _PLACE.search(message)
    path = place["path"] if place else ""
    cause = error.__cause__
    if isinstance(cause, Refused):
        return Refused(cause.problem, path)
    if cause is not None:  # the words of a __post_init__ may quote the value
        return Refused(f"refused by its type with {type_name(cause)}", path)
    if message.startswith(("Invalid enum value", "Invalid value")):  # msgspec quotes the value
        return Refused("not one of the allowed values", path)
    words = _PLACE.sub("", message).replace("`", "")
    problem = words[:1].lower() + words[1:]
    return Refused(f"one of its keys: {problem}" if place and place["key"] else problem, path)


def decode_other(kind: type[Any], value: Any) -> Any:
    """msgspec's hook for types that it does not know: pydantic models, and `object`, which is anything."""
    if kind is object:
        return value
    try:
        # By way of JSON: a model with strict=True takes a date from JSON text, but not from a Python str.
        return kind.model_validate_json(msgspec.json.encode(value))
    except Exception as error:
        problem = _model_problem(error)
    raise Refused(problem)


def _model_problem(error: Exception) -> str:
    """Place and kind of the first error. Its message is left out: a validator's own words may quote the value."""
    if type_name(error) != "ValidationError":
        return f"refused by its model with {type_name(error)}"
    first = cast("Any", error).errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(shown(str(step)) for step in first["loc"])
    return f"refused by its model: {place + ': ' if place else ''}{first['type']}"


_any_decoder = msgspec.json.Decoder[Any](Any)


def decode_any(payload: str | bytes | None) -> Any:
    """The plain data of a payload or result, for those who have no signature. No payload is None."""
    if payload is None:
        return None
    try:
        return read_json(_any_decoder, payload, DEEPEST)
    except Refused as refused:
        problem = refused.problem
    raise InvalidPayload(f"The stored JSON can't be read: {problem}.")


def fingerprint(payload: str) -> bytes:
    """16 bytes that are equal for equal arguments, in whatever order and spacing they were written."""
    canonical = msgspec.json.encode(decode_any(payload), order="deterministic")
    return hashlib.blake2b(canonical, digest_size=16).digest()


# ── guards, on JSON of either direction ──────────────────────────────────────────────────────────────────────────────

_JSON_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_DIGITS_AS_ZEROS = bytes(ord("0") if chr(code) in "0123456789" else ord(" ") for code in range(256))
_LONG_NUMBER = b"0" * 19  # 2**63 has 19 digits
_BRACKETS_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(code for code in range(256) if chr(code) not in "[]{}")


def _guard(encoded: bytes, depth: int) -> None:
    # n levels take 2n bytes and n opening brackets: most payloads are cleared by their length alone, most others by
    # counting. Brackets inside strings only make the count too large.
    if len(encoded) > 2 * depth and encoded.count(b"[") + encoded.count(b"{") > depth:
        _refuse_depth(encoded, depth)
    if len(encoded) >= len(_LONG_NUMBER) and _LONG_NUMBER in encoded.translate(_DIGITS_AS_ZEROS):
        _refuse_long_integers(encoded)


def _without_strings(encoded: bytes) -> bytes:
    # Without escaped backslashes and then escaped quotes, every second piece between quotes is outside of strings.
    # A regular expression would say the same ten times slower.
    pieces = encoded.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    return b" ".join(pieces[::2])


def _refuse_depth(encoded: bytes, depth: int) -> None:
    brackets = _without_strings(encoded).translate(_BRACKETS_AS_SQUARE, _NO_BRACKETS)
    for _ in range(depth):
        inner = brackets.replace(b"[]", b"")  # removes exactly the innermost level
        if len(inner) == len(brackets):
            return  # nothing left, or unbalanced, which the decoder refuses with a better message
        brackets = inner
    if brackets:
        raise Refused(f"it is nested more than {depth} levels deep; pass an id or flatter data")


def _refuse_long_integers(encoded: bytes) -> None:
    for match in _JSON_NUMBER.finditer(_without_strings(encoded)):
        number = match.group()
        # The length comes first: reading a number of thousands of digits is slow, and forbidden by Python itself.
        if number.lstrip(b"-").isdigit() and (len(number) > 20 or not -(2**63) <= int(number) < 2**64):
            raise Refused("an integer in it is beyond 64 bits; pass it as text")


# ── sending by name, without the code of the task ────────────────────────────────────────────────────────────────────


def check_payload(args: Mapping[str, Any], *, limits: PayloadLimits = PayloadLimits(), task: str = "send") -> str:
    """The payload of a task whose code is elsewhere: JSON within the limits, by names that can be parameters."""
    subject = f"{task}()"
    try:
        arguments = dict(args)
    except Exception as error:
        problem = type_name(error)
    else:
        for name in arguments:
            if not isinstance(cast("object", name), str) or not str.isidentifier(name):
                raise InvalidPayload(f"{subject}: every argument needs a name that can be a parameter of a function.")
        payload = write_arguments(subject, arguments, limits).decode()
        decode_any(payload)  # a msgspec.Raw is written as it is, valid or not
        return payload
    raise InvalidPayload(f"{subject}: the arguments must be a mapping of names to values, reading it raised {problem}.")
