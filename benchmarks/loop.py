"""The event loop that every side runs on: uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

Result = TypeVar("Result")

NAME = "asyncio" if uvloop is None else f"uvloop {version('uvloop')}"


def run(main: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(main) if uvloop is None else uvloop.run(main)
