"""Checking payloads against the schema that a task's workers have published, for callers without its code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.codec import decode_any, shown, type_name
from holdfast.errors import InvalidPayload, InvalidTask

if TYPE_CHECKING:
    import jsonschema_rs


TIME_FORMAT: Final = "holdfast-time"
"""A date and a time as our codec reads them, with or without a time zone."""


def check_schema(task: str, schema: dict[str, Any], payload: str) -> None:
    """Refuse a payload that does not fit the argument schema which the task's workers have published."""
    validator = _validator(task, msgspec.json.encode(schema))
    arguments = decode_any(payload)
    try:
        error = next(iter(validator.iter_errors(arguments)), None)
        if error is None:
            return
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{shown(step)}" for step in error.instance_path)
        # mask= hides the value but not a name that propertyNames refused.
        problem = "a name in it is not allowed" if "propertyNames" in error.schema_path else error.message
    except ValueError as failure:
        path, problem = "", f"they can't be checked ({type_name(failure)})"
    raise InvalidPayload(f"{task}(): {f'argument {path[1:]}' if path else 'arguments'}: {problem}.")


@functools.lru_cache(maxsize=512)
def _validator(task: str, schema: bytes) -> jsonschema_rs.Validator:
    import jsonschema_rs  # only those who send by name need it

    try:
        return jsonschema_rs.validator_for(
            schema.decode(), validate_formats=True, formats=_FORMATS, retriever=_refuse_to_retrieve, mask="value"
        )
    except ValueError as error:
        raise InvalidTask(f"{task}: its published schema is not one. Deploy its workers again.") from error


def _reads_as(kind: type[Any]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            msgspec.convert(text, kind)
        except msgspec.ValidationError:
            return False
        return True

    return check


_FORMATS: Final = {TIME_FORMAT: _reads_as(datetime), "decimal": _reads_as(Decimal)}


def _refuse_to_retrieve(uri: str) -> Any:
    """A schema is self-contained; following its references would let it make us call any address."""
    raise ValueError("references to other documents are not followed")
