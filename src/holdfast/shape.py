"""The shape of a function that is to be a task, as far as it can be seen at import: no annotation is resolved."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from holdfast.errors import InvalidTask

_EMPTY = inspect.Parameter.empty


def shape_of(function: Callable[..., Any], task: str) -> list[inspect.Parameter]:
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            # By default, the annotations would be evaluated here, at import.
            signature = inspect.signature(function, annotation_format=annotationlib.Format.STRING)
        else:
            signature = inspect.signature(function)
    except ValueError as error:  # some functions written in C don't tell
        raise InvalidTask(f"{task}: only a function can be a task. Write one with def or async def.") from error
    return list(signature.parameters.values())


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return getattr(function, "__annotations__", {})


_METHOD = "{task}: a method can't be a task. Write a function at the top of the module that calls it."


def check_function(function: Any, task: str) -> None:
    if inspect.isclass(function):
        raise InvalidTask(f"{task}: a class can't be a task. Write a function that makes and uses it.")
    if inspect.ismethod(function) or isinstance(function, staticmethod | classmethod):
        raise InvalidTask(_METHOD.format(task=task))
    if not callable(function) or not hasattr(function, "__name__"):
        raise InvalidTask(f"{task}: only a function can be a task. Write one with def or async def.")
    if function.__name__ == task == "<lambda>":
        raise InvalidTask("A lambda has no name that a worker could find. Use def, or give it one with `name=`.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(f"{task}: a function that yields can't be a task. Return the values instead.")


def check_not_method(function: Callable[..., Any], parameters: list[inspect.Parameter], task: str) -> None:
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    # While its class is being built, a method is still a plain function and only its names give it away.
    if owner and not owner.endswith("<locals>") and parameters and parameters[0].name in ("self", "cls"):
        raise InvalidTask(_METHOD.format(task=task))


def take_context(parameters: list[inspect.Parameter], task: str, bind: bool, context: str) -> str | None:
    """Remove the context from the parameters of a bound task and return its name."""
    taken: str | None = None
    if bind:
        first = parameters.pop(0) if parameters else None
        if first is None or first.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise InvalidTask(f"{task}: bind=True passes the context first. Make `ctx: {context}` its first parameter.")
        if first.annotation is not _EMPTY and not _names(first.annotation, context):
            raise InvalidTask(
                f"{task}: bind=True passes the context first, but its first parameter is "
                f"`{first.name}{shown_annotation(first)}`. Put `ctx: {context}` before it, or remove bind=True."
            )
        taken = first.name
    for parameter in parameters:
        if _names(parameter.annotation, context):
            remedy = f"Only the first parameter is the {context}." if bind else "Add bind=True, which passes it."
            raise InvalidTask(f"{task}: `{parameter.name}: {context}` is not an argument. {remedy}")
    return taken


def _names(annotation: Any, name: str) -> bool:
    """Whether an annotation is a type of this name, told without resolving it."""
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2] == name
    return getattr(annotation, "__name__", None) == name


def check_parameters(parameters: list[inspect.Parameter], task: str) -> None:
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise InvalidTask(
                f"{task}: `*{parameter.name}` can't be stored by name. Take a list: `{parameter.name}: list[int]`."
            )
        # Two leading underscores are how positional-only was written before there was a slash.
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY or parameter.name.startswith("__"):
            raise InvalidTask(
                f"{task}: `{parameter.name}` is positional-only, but arguments are stored by name. "
                "Remove the `/` from its parameters, or the underscores from its name."
            )


def shown_annotation(parameter: inspect.Parameter) -> str:
    if parameter.annotation is _EMPTY:
        return ""
    written = parameter.annotation
    return f": {written if isinstance(written, str) else inspect.formatannotation(written)}"
