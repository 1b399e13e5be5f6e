"""Power loss, on paper: what the disk holds after the first n system calls of a process, if nobody had synced more.

The calls come from strace. A write is certain to be on the disk once its file was synced after
it; until then it may be there or not, whole, in any order. A sync that fails
forgets: the kernel takes what it could not write for written, and never tries again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_WHOLE = re.compile(r"^(\d+) +(\w+)\((\d+)<([^>]*)>(?:, (.*))?\) += (-?\d+)", re.DOTALL)
_BEGUN = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
_UNLINK = re.compile(r'^\d+ +unlink\("([^"]*)"\) += 0')
_WRITE = re.compile(r'^"((?:\\x[0-9a-f]{2})*)", \d+(?:, (\d+))?')

OPTIONS = ("-y", "-xx", "-s", "1000000", "-e", "trace=pwrite64,fdatasync,fsync,ftruncate,write,unlink")


@dataclass(frozen=True)
class Call:
    name: str
    path: str
    data: bytes = b""
    offset: int = 0
    has_failed: bool = False


def read_calls(log: Path) -> Iterator[Call]:
    """The calls of all threads in the order in which they ended."""
    begun: dict[str, str] = {}
    for line in log.read_text().splitlines():
        if match := _BEGUN.match(line):
            begun[match[1]] = match[2]
            continue
        if match := _RESUMED.match(line):
            line = f"{match[1]} {begun.pop(match[1])}{match[2]}"
        if match := _UNLINK.match(line):
            yield Call("unlink", _text(match[1]))
        if (match := _WHOLE.match(line)) is None:
            continue
        _, name, _, path, rest, answer = match.groups()
        path = _text(path)
        has_failed = int(answer) < 0
        if name in ("pwrite64", "write"):
            written = _WRITE.match(rest)
            assert written is not None, line[:200]
            data = bytes.fromhex(written[1].replace("\\x", ""))
            yield Call(name, path, data, int(written[2] or 0), has_failed)
        elif name == "ftruncate":
            yield Call(name, path, b"", int(rest), has_failed)
        else:
            yield Call(name, path, has_failed=has_failed)


def _text(escaped: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), escaped)


@dataclass
class File:
    """A file: what is certainly on the disk, and what may be."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Call] = field(default_factory=list)

    def after_power_loss(self, chance: random.Random) -> bytes:
        content = bytearray(self.durable)
        share = chance.choice((0.0, 0.5, 0.9, 1.0))
        for call in self.pending:
            if chance.random() < share:
                _apply(content, call)
        return bytes(content)


class Disk:
    """All files, as the calls change them."""

    def __init__(self, before: dict[str, bytes]) -> None:
        self.files = {path: File(bytearray(content)) for path, content in before.items()}

    def take(self, call: Call) -> None:
        file = self.files.setdefault(call.path, File())
        if call.name == "unlink":
            del self.files[call.path]
        elif call.name in ("pwrite64", "ftruncate"):
            if not call.has_failed:
                file.pending.append(call)
        elif call.name in ("fdatasync", "fsync"):
            if not call.has_failed:
                for write in file.pending:
                    _apply(file.durable, write)
            file.pending = []


def _apply(content: bytearray, call: Call) -> None:
    end = call.offset + len(call.data)
    if call.name == "ftruncate":
        content[:] = content[:end].ljust(end, b"\0")
        return
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[call.offset : end] = call.data
