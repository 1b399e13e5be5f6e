"""One question to an app, from a command: its database is closed afterwards, and never created."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.app import Holdfast
from holdfast.cli.target import chosen_app, refuse_without_tables

Result = TypeVar("Result")


def ask(app: str | None, url: str | None, question: Callable[[Holdfast], Awaitable[Result]]) -> Result:
    """Ask the app that was named, or one without tasks on the database that was named."""
    hf = chosen_app(app, url)

    async def whole() -> Result:
        await refuse_without_tables(hf)
        try:
            return await question(hf)
        finally:
            await hf.aclose()

    return asyncio.run(whole())
