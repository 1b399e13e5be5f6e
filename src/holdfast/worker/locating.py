"""How another process finds an app that lives in this one."""

from __future__ import annotations

import sys
from types import ModuleType

from holdfast.errors import InvalidOption

_is_alone = False


def mark_as_isolated() -> None:
    """This is the process of isolated jobs."""
    global _is_alone  # noqa: PLW0603 - a fact about the process
    _is_alone = True


def refuse_in_isolation() -> None:
    """Raise if somebody starts a worker in the process of an isolated job, where their program is merely imported."""
    if _is_alone:
        raise InvalidOption(
            "A process for an isolated job has imported this program, which starts a worker at once. "
            'Put what starts it below `if __name__ == "__main__":`.'
        )


def locate(app: object) -> str:
    """`module:name`, or `path/of/program.py:name`, as `load_app` takes it."""
    # The program itself comes last: to import it may do more than to import a module.
    for name, module in sorted(sys.modules.items(), key=lambda item: item[0] == "__main__"):
        if isinstance(module, ModuleType):
            for attribute, value in list(vars(module).items()):
                if value is app:
                    return f"{_importable(name, module)}:{attribute}"
    raise InvalidOption(
        "A task with isolation='process' runs in another process, which must find the app: assign it to a global "
        "variable of a module."
    )


def _importable(name: str, module: ModuleType) -> str:
    if name != "__main__":
        return name
    spec = getattr(module, "__spec__", None)
    return spec.name if spec is not None else str(getattr(module, "__file__", name))
