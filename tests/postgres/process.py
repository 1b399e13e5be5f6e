"""A process that acts for a test; see actor.py."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.postgres.database import PATIENCE

_PROJECT = Path(__file__).parents[2]


class Process:
    """Leaving its `async with` block kills it."""

    def __init__(self, *command: object) -> None:
        self._command = [str(part) for part in command]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.postgres.actor",
            *self._command,
            cwd=_PROJECT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send(self, what: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(what)

    async def hear(self) -> dict[str, Any]:
        """What it says next."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line, "it has ended without a word"
        said: dict[str, Any] = json.loads(line)
        return said
