"""Keys made from arguments: `"charge:{order_id}"`, `"{user.id}"`.

A template is stored with its task, and any service that knows the arguments as JSON renders the same key from it. So
it has no expressions, no formats and no attributes of Python objects: names in braces, dotted to reach into objects.

Different arguments give different keys. In a value, `%` and control characters are percent-encoded, and so is every
character that separates two placeholders of this template: `"{a}:{b}"` makes `x%3Ay:z` of `x:y` and `z`, but `x:y%3Az`
of `x` and `y:z`. A separator is thus never part of a value, and each value can be told from the key. Only the type is
lost: `1` and `"1"` are the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from holdfast.errors import InvalidOption, InvalidPayload

__all__ = ["Template"]

LONGEST = 512

_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]|[^{}]+")
_CONTROL = frozenset([*range(0x20), *range(0x7F, 0xA0)])  # PostgreSQL has no text with NUL in it; nobody needs the rest
_ALLOWED = "Use names of parameters in braces, as in {order_id} or {user.id}; write {{ and }} for braces."
_NOTHING: Mapping[str, Any] = {}


class Template:
    """A key with placeholders, parsed and checked on construction. Equal when its text is equal."""

    __slots__ = ("_escapes", "_parts", "names", "text")

    text: str
    names: tuple[str, ...]
    """The parameters it reads, each once, in order."""

    def __init__(self, text: str) -> None:
        if not isinstance(cast("object", text), str) or not 0 < len(text) <= LONGEST:
            raise InvalidOption(f"A template must be a text of 1 to {LONGEST} characters.")
        if not _is_unicode(text) or any(ord(character) in _CONTROL for character in text):
            raise InvalidOption("A template must be valid Unicode without control characters.")
        self.text = text
        self._parts = _parse(text)
        self.names = tuple(dict.fromkeys(part[0] for part in self._parts if isinstance(part, tuple)))
        self._escapes = {code: _percent(chr(code)) for code in [ord("%"), *_CONTROL]}
        for separator in _separators(text, self._parts):
            self._escapes[ord(separator)] = _percent(separator)

    def check(self, parameters: Iterable[str], *, extra: bool = False) -> None:
        """Refuse names that are not among the task's parameters. `extra` is for a task that takes `**kwargs`."""
        known = list(parameters)
        unknown = [name for name in self.names if name not in known]
        if unknown and not extra:
            takes = ", ".join(known) or "nothing"
            raise InvalidOption(f'Template "{self.text}": there is no parameter {unknown[0]}. The task takes {takes}.')

    def render(self, arguments: Mapping[str, Any], defaults: Mapping[str, Any] = _NOTHING) -> str:
        """The key for these arguments, which are plain decoded JSON, with the JSON of the defaults for those not given.

        Refuses a value that is missing, None or not a single one, and a key that is empty or too long.
        """
        pieces = [part if isinstance(part, str) else self._value(part, arguments, defaults) for part in self._parts]
        key = "".join(pieces)
        if not 0 < len(key) <= LONGEST:
            raise InvalidPayload(
                f'Template "{self.text}": its key must have 1 to {LONGEST} characters, this one has {len(key)}. '
                "Use an id in it."
            )
        return key

    def _value(self, path: tuple[str, ...], arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
        value: Any = arguments if path[0] in arguments else defaults
        for name in path:
            # Mostly it is a dictionary, and to ask whether it is any mapping takes longer than all the rest.
            if (type(value) is not dict and not isinstance(value, Mapping)) or name not in value:
                raise self._refusal(path, "is missing")
            value = value[name]
        match value:
            case str():
                text = value
            case bool():
                text = "true" if value else "false"
            case int() if -(2**63) <= value < 2**64:
                text = str(value)
            case float() if value - value == 0.0:  # finite
                text = msgspec.json.encode(value).decode()  # as JSON has it, so that other languages agree
            case None:
                raise self._refusal(path, "is None")
            case _:
                raise self._refusal(path, "is not a text, a number or a truth value")
        if text.isascii():
            # No letter and no digit is a separator.
            return text if text.isalnum() else text.translate(self._escapes)
        if not _is_unicode(text):
            raise self._refusal(path, "has a lone surrogate, which is not valid Unicode")
        return text.translate(self._escapes)

    def _refusal(self, path: tuple[str, ...], problem: str) -> InvalidPayload:
        return InvalidPayload(f'Template "{self.text}": argument {".".join(path)} {problem}. Pass a value for it.')

    def __repr__(self) -> str:
        return f"Template({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def _parse(text: str) -> list[str | tuple[str, ...]]:
    """Literal texts and dotted names, in turn; neighbouring literals are joined."""
    parts: list[str | tuple[str, ...]] = []
    for token in cast("list[str]", _TOKEN.findall(text)):
        literal = token[0] if token in ("{{", "}}") else token
        if literal == token and token[0] in "{}":
            parts.append(_path(text, token))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += literal
        else:
            parts.append(literal)
    return parts


def _path(text: str, token: str) -> tuple[str, ...]:
    path = tuple(token[1:-1].split("."))
    # Keys end up in SQL and in URLs of a dashboard; a lone brace has an empty path and is refused here too.
    if not all(name.isidentifier() and not name.startswith("_") for name in path):
        raise InvalidOption(f'Template "{text}": {token} is not allowed. {_ALLOWED}')
    return path


def _separators(text: str, parts: list[str | tuple[str, ...]]) -> set[str]:
    """The characters between placeholders that values must not contain for the key to be unambiguous."""
    separators: set[str] = set()
    placeholders = [index for index, part in enumerate(parts) if isinstance(part, tuple)]
    for index, following in itertools.pairwise(placeholders):
        # Letters and digits can't separate: percent-encoding is made of them.
        marks = (
            {mark for mark in parts[index + 1] if not mark.isalnum() and mark != "%"} if following > index + 1 else ()
        )
        if not marks:
            raise InvalidOption(f'Template "{text}": put a separator such as ":" between two placeholders.')
        separators.update(marks)
    return separators


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
