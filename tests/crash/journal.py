"""What a process meant to do, and what it was told is done: an append-only file that survives its kill."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path


class Journal:
    """Lines of `intend key…` and `ack key…`. The keys of one line are of one transaction."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def intend(self, keys: Sequence[str]) -> None:
        """Before it is tried."""
        self._write("intend", keys)

    def ack(self, keys: Sequence[str]) -> None:
        """After it was said to be done."""
        self._write("ack", keys)

    def _write(self, word: str, keys: Sequence[str]) -> None:
        # A kill can cut a line short; the next writer's must not run into it.
        line = f"\n{word} {' '.join(keys)} .\n".encode()
        assert os.write(self._file, line) == len(line)

    def close(self) -> None:
        os.close(self._file)


class Entries:
    """What a journal says. A line that a kill has cut short was not written."""

    def __init__(self, path: Path) -> None:
        self.batches: list[list[str]] = []
        self.intended: set[str] = set()
        self.acked: list[str] = []
        for word, keys in _lines(path):
            if word == "intend":
                self.batches.append(keys)
                self.intended.update(keys)
            else:
                self.acked.extend(keys)


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    if path.exists():
        for line in path.read_text().splitlines():
            if line.endswith(" ."):
                word, *keys, _ = line.split()
                yield word, keys
