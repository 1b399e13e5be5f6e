"""Finding the user's app: `module:name`, or `module` if it has only one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from types import ModuleType
from typing import Any, NoReturn

from holdfast.app import Holdfast
from holdfast.errors import ConfigurationError


class CantLoad(ConfigurationError):
    """The app can't be loaded. `trace` is where the user's own code raised, if it did."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace

    @property
    def told(self) -> str:
        """All there is to say."""
        return f"{self.trace}\n{self}" if self.trace else str(self)


def load_app(text: str) -> Holdfast:
    """Import an app, with the modules that it names. The current folder can be imported from."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    name, separator, attribute = text.partition(":")
    if not name or (separator and not attribute):
        raise CantLoad(f"{text!r} is not MODULE or MODULE:NAME, such as shop:hf.")
    module = _import(name)
    app = _named(module, attribute) if separator else _only(module)
    for other in app.imports:
        _import(other)
    return app


def _import(name: str) -> ModuleType:
    try:
        return _import_file(name) if name.endswith(".py") else importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            _fail(name, error)
        raise CantLoad(f"There is no module {name!r}. Run this in the folder where `import {name}` works.") from None
    except Exception as error:
        _fail(name, error)


def _import_file(path: str) -> ModuleType:
    """A program as a module, under another name than `__main__`, so that it does not run as one."""
    name = f"__holdfast_{os.path.basename(path).removesuffix('.py')}__"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise CantLoad(f"There is no file {path}.")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fail(name: str, error: Exception) -> NoReturn:
    """The user's code raised: show where, from the first line that is theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    trace = "".join(traceback.format_list(theirs)).rstrip()
    raise CantLoad(f"{name} can't be imported: {type(error).__name__}: {error}", trace) from error


def _named(module: ModuleType, attribute: str) -> Holdfast:
    found: Any = module
    named = f"The module {module.__name__}"
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CantLoad(f"{named} has no attribute {part!r}.{_hint(module)}")
        found = getattr(found, part)
        named = part
    if not isinstance(found, Holdfast):
        raise CantLoad(f"{module.__name__}:{attribute} is a {type(found).__name__}, not a Holdfast app.{_hint(module)}")
    return found


def _only(module: ModuleType) -> Holdfast:
    apps = _apps(module)
    if len({id(app) for app in apps.values()}) != 1:
        problem = "has no Holdfast app" if not apps else "has several Holdfast apps"
        raise CantLoad(f"The module {module.__name__} {problem}.{_hint(module)}")
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, Holdfast]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Holdfast)}


def _hint(module: ModuleType) -> str:
    names = [f"{module.__name__}:{name}" for name in _apps(module)]
    return f" Name one of them: {', '.join(names)}." if names else ""
