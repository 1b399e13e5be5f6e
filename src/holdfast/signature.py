"""What a task accepts and returns, read from its function.

Construction looks at the shape only and resolves no annotation, so that importing a task needs none of its types. The
types are resolved and checked when the first job is encoded or decoded.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, cast

import msgspec

from holdfast.codec import (
    PayloadLimits,
    Refused,
    decode_any,
    decode_other,
    encode_json,
    is_pydantic_model,
    is_unsuspicious,
    read_json,
    shown,
    write_arguments,
    write_json,
)
from holdfast.errors import InvalidPayload, InvalidTask, PayloadTooLarge
from holdfast.schema import TIME_FORMAT
from holdfast.shape import (
    annotations_of,
    check_function,
    check_not_method,
    check_parameters,
    shape_of,
    shown_annotation,
    take_context,
)

__all__ = ["Signature"]

_RETURN = "return"  # a keyword, hence never the name of a parameter
_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class _Types:
    """The resolved annotations and the decoders made from them."""

    annotations: dict[str, Any]
    arguments: msgspec.json.Decoder[Any]
    result: msgspec.json.Decoder[Any]
    extra: msgspec.json.Decoder[Any] | None


class Signature:
    """The arguments and the result of one task, as JSON and back.

    What `encode` accepts, `decode` of the same code accepts too: every payload is decoded once before it is returned.
    """

    __slots__ = (
        "_context",
        "_extra",
        "_function",
        "_known",
        "_limits",
        "_positional",
        "_small",
        "_types",
        "parameters",
        "task",
    )

    task: str
    parameters: tuple[str, ...]
    """The names of its arguments. The context of a bound task is not one of them, nor is `**kwargs`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        task: str,
        bind: bool,
        context: str = "Context",
        limits: PayloadLimits = PayloadLimits(),
    ) -> None:
        """Refuse a function that can't be a task with InvalidTask. `context` is the type of a bound first parameter."""
        check_function(function, task)
        parameters = shape_of(function, task)
        check_not_method(function, parameters, task)
        self._context = take_context(parameters, task, bind, context)
        check_parameters(parameters, task)
        self.task = task
        self._function = function
        self._limits = limits
        self._extra = parameters.pop() if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else None
        self._known = {parameter.name: parameter for parameter in parameters}
        self._positional = tuple(
            name for name, parameter in self._known.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        )
        self.parameters = tuple(self._known)
        self._small = min(2 * limits.depth, limits.payload)
        self._types: _Types | None = None

    @property
    def required(self) -> tuple[str, ...]:
        """Those of its arguments that have no default."""
        return tuple(name for name, parameter in self._known.items() if parameter.default is _EMPTY)

    @property
    def accepts_extra(self) -> bool:
        """Whether the task takes `**kwargs`, and so arguments of any name."""
        return self._extra is not None

    def __str__(self) -> str:
        """The signature as its author wrote it, without context and with `...` for defaults."""
        shown_parameters: list[str] = []
        for name, parameter in self._known.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in shown_parameters:
                shown_parameters.append("*")
            shown_parameters.append(
                f"{name}{shown_annotation(parameter)}{'' if parameter.default is _EMPTY else ' = ...'}"
            )
        if self._extra is not None:
            shown_parameters.append(f"**{self._extra.name}{shown_annotation(self._extra)}")
        return f"{self.task}({', '.join(shown_parameters)})"

    # ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The payload of a call with these arguments, or InvalidPayload. Defaults are not stored.

        Never raises another error because of a value, never shows a value, never asks one for its `repr`.
        """
        resolved = self._types or self._resolve()
        arguments = kwargs
        if args:
            positional = self._positional
            if len(args) > len(positional):
                raise InvalidPayload(
                    f"{self.task}(): {len(args)} positional arguments were given, it takes {len(positional)}. "
                    f"It is {self}."
                )
            arguments = {positional[0]: args[0]} if len(args) == 1 else dict(zip(positional, args, strict=False))
            if kwargs:
                doubled = arguments.keys() & kwargs.keys()
                if doubled:
                    raise InvalidPayload(f"{self.task}(): argument {shown(min(doubled))} is given twice. It is {self}.")
                arguments.update(kwargs)
        try:
            # The hot path: most arguments are a few ids, so small that hardly anything can be wrong with them.
            encoded = encode_json(arguments)
            if len(encoded) <= self._small and is_unsuspicious(encoded) and resolved.extra is None:
                resolved.arguments.decode(encoded)  # the same decoder as the worker's
                return encoded.decode()
        except Exception:
            pass  # done again below, for the message
        encoded = write_arguments(f"{self.task}()", arguments, self._limits)
        try:
            if resolved.extra is None:
                resolved.arguments.decode(encoded)
                return encoded.decode()
        except Exception:
            pass  # decoded once more below, for the message
        self.decode(encoded)
        return encoded.decode()

    def decode(self, payload: str | bytes) -> dict[str, Any]:
        """The typed keyword arguments for the call, or InvalidPayload. Those not given are left to their defaults."""
        resolved = self._types or self._resolve()
        try:
            # The hot path of workers, as in `encode`.
            encoded = payload.encode() if isinstance(payload, str) else payload
            if len(encoded) <= self._small and resolved.extra is None and is_unsuspicious(encoded):
                found = msgspec.structs.asdict(resolved.arguments.decode(encoded))
                if _ABSENT not in found.values():
                    return found
        except Exception:
            pass  # done again below, for the message
        try:
            decoded = read_json(resolved.arguments, payload, self._limits.depth)
            arguments = {name: value for name, value in msgspec.structs.asdict(decoded).items() if value is not _ABSENT}
            if resolved.extra is not None:
                arguments.update(self._decode_extra(resolved.extra, payload))
        except Refused as refused:
            problem = refused
        else:
            return arguments
        raise self._refusal(payload, problem)

    def _decode_extra(self, decoder: msgspec.json.Decoder[Any], payload: str | bytes) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        for name, raw in read_json(_raw_decoder, payload, self._limits.depth).items():
            if name == self._context:
                raise Refused("it is the context, which the worker passes", name)
            if name not in self._known:
                try:
                    extra[name] = read_json(decoder, bytes(raw), self._limits.depth)
                except Refused as refused:
                    path = refused.path if refused.path.startswith("[") or not refused.path else f".{refused.path}"
                    raise Refused(refused.problem, f"{shown(name)}{path}") from None
        return extra

    def _refusal(self, payload: str | bytes, refused: Refused) -> InvalidPayload:
        """Say it in terms of the call where it is about names, and in terms of the argument otherwise."""
        if refused.path:
            return InvalidPayload(f"{self.task}(): argument {refused.path}: {refused.problem}. It is {self}.")
        try:
            given = set(_raw_decoder.decode(payload))
        except Exception:
            return InvalidPayload(f"{self.task}(): the arguments can't be read: {refused.problem}. It is {self}.")
        for name, parameter in self._known.items():
            if parameter.default is _EMPTY and name not in given:
                return InvalidPayload(f"{self.task}(): argument {name} is missing. It is {self}.")
        for name in sorted(given - self._known.keys()):
            return InvalidPayload(f"{self.task}(): there is no argument {shown(name)}. It is {self}.")
        return InvalidPayload(f"{self.task}(): the arguments can't be read: {refused.problem}. It is {self}.")

    # ── result ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def encode_result(self, value: Any) -> str:
        """The JSON of what the task returned, or InvalidPayload if it can't be stored or is not what was annotated."""
        resolved = self._types or self._resolve()
        try:
            encoded = write_json(value, self._limits.depth)
            if len(encoded) <= self._limits.result:
                read_json(resolved.result, encoded, self._limits.depth)
                return encoded.decode()
        except Refused as refused:
            problem = refused
        else:
            raise PayloadTooLarge(
                f"{self.task}(): the result is {len(encoded):,} bytes of JSON, the limit is {self._limits.result:,}. "
                "Store the data elsewhere and return its id."
            )
        raise self._result_refusal(problem)

    def decode_result(self, payload: str | bytes | None) -> Any:
        """What the task returned, typed by its annotation. No payload is None."""
        if payload is None:
            return None
        resolved = self._types or self._resolve()
        try:
            return read_json(resolved.result, payload, self._limits.depth)
        except Refused as refused:
            problem = refused
        raise self._result_refusal(problem)

    def _result_refusal(self, refused: Refused) -> InvalidPayload:
        return InvalidPayload(
            f"{self.task}(): the result{f' at {refused.path}' if refused.path else ''}: {refused.problem}"
        )

    # ── what others may know of it ───────────────────────────────────────────────────────────────────────────────────

    def defaults(self) -> dict[str, Any]:
        """The defaults as plain JSON data, without those that JSON can't hold."""
        plain: dict[str, Any] = {}
        for name, parameter in self._known.items():
            if parameter.default is not _EMPTY:
                try:
                    plain[name] = decode_any(write_json(parameter.default, self._limits.depth))
                except (Refused, InvalidPayload):
                    pass  # callers from elsewhere simply don't see this one
        return plain

    def schema(self) -> dict[str, Any]:
        """The JSON Schema (2020-12) of the payload, self-contained, for callers without the code."""
        annotations = (self._types or self._resolve()).annotations
        names = [name for name in annotations if name != _RETURN]
        definitions: dict[str, Any] = {}
        schemas, shared = msgspec.json.schema_components(
            [_described(annotations[name]) for name in names],
            schema_hook=lambda kind: _model_schema(kind, definitions),
            ref_template="#/$defs/{name}",
        )
        properties = {name: dict(schema) for name, schema in zip(names, schemas, strict=True)}
        extra = properties.pop(self._extra.name) if self._extra is not None else False
        for name, default in self.defaults().items():
            properties[name]["default"] = default
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.task,
            "type": "object",
            "properties": properties,
            "required": [name for name, parameter in self._known.items() if parameter.default is _EMPTY],
            "additionalProperties": extra,
            **({"$defs": {**shared, **definitions}} if shared or definitions else {}),
        }

    def _resolve(self) -> _Types:
        """Resolve the annotations and make the decoders, or refuse the task. Doing it twice at once does no harm."""
        parameters = [*self._known.values(), *([self._extra] if self._extra is not None else [])]
        # The context's annotation is left alone: importing Context for type checkers only is good style.
        annotations = {parameter.name: self._resolve_one(parameter.name) for parameter in parameters}
        annotations[_RETURN] = self._resolve_one(_RETURN)
        members = [
            (name, annotations[name]) if parameter.default is _EMPTY else (name, annotations[name], _ABSENT)
            for name, parameter in self._known.items()
        ]
        struct = msgspec.defstruct("Arguments", members, kw_only=True, forbid_unknown_fields=self._extra is None)
        self._types = _Types(
            annotations,
            msgspec.json.Decoder(struct, dec_hook=decode_other),
            msgspec.json.Decoder(annotations[_RETURN], dec_hook=decode_other),
            None if self._extra is None else msgspec.json.Decoder(annotations[self._extra.name], dec_hook=decode_other),
        )
        return self._types

    def _resolve_one(self, name: str) -> Any:
        written = annotations_of(self._function).get(name, Any)
        subject = "its return annotation" if name == _RETURN else f"the annotation of {name}"
        holder = types.SimpleNamespace(
            __annotations__={name: written}, __type_params__=getattr(self._function, "__type_params__", ())
        )
        namespace: dict[str, Any] = getattr(inspect.unwrap(self._function), "__globals__", {})
        try:
            resolved = typing.get_type_hints(holder, namespace, include_extras=True)[name]
            if resolved in (typing.NoReturn, typing.Never):
                resolved = Any  # it returns nothing, so there is nothing to check
            msgspec.json.Decoder(resolved, dec_hook=decode_other)
            # msgspec takes any class at first and fails when a value comes; its schema has to know them all.
            msgspec.json.schema_components([resolved], schema_hook=_accept_model)
        except NameError as error:
            raise InvalidTask(
                f"{self.task}: {subject} can't be resolved: {error.name} is not defined. "
                "Import it at the top of the module, outside `if TYPE_CHECKING`."
            ) from error
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[-1]
            raise InvalidTask(
                f"{self.task}: {subject} can't be read from JSON ({reason}). Use plain data, "
                "dataclasses, msgspec or pydantic models, or an id."
            ) from error
        return resolved


_ABSENT = msgspec.UNSET
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _described(annotation: Any) -> Any:
    """The same type, with times described as such: msgspec leaves those open that need no time zone."""
    if annotation is datetime:
        return Annotated[datetime, msgspec.Meta(extra_json_schema={"format": TIME_FORMAT})]
    inner = typing.get_args(annotation)
    origin: Any = typing.get_origin(annotation)
    if origin in (list, set, frozenset, dict, tuple):
        return types.GenericAlias(origin, tuple(_described(each) for each in inner))
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_described(each) for each in inner)]  # noqa: UP007 - made at run time
    return annotation


def _accept_model(kind: Any) -> dict[str, Any]:
    if kind is object or is_pydantic_model(kind):
        return {"type": "object"}  # msgspec takes an empty schema for none
    raise NotImplementedError


def _model_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a pydantic model, its own definitions moved to the shared ones under names nobody else has."""
    if kind is object:
        return {"description": "Anything."}
    prefix = "".join(letter if letter.isalnum() else "_" for letter in f"{kind.__module__}.{kind.__qualname__}")
    try:
        schema = kind.model_json_schema(by_alias=True, ref_template=f"#/$defs/{prefix}.{{model}}")
    except Exception:
        return {"title": kind.__name__, "type": "object"}  # a field that JSON Schema can't describe
    for name, definition in schema.pop("$defs", {}).items():
        definitions[f"{prefix}.{name}"] = definition
    return cast("dict[str, Any]", schema)
