"""Job ids: UUIDv7, made by the client before anything is sent, so that a lost answer can be asked for again."""

from __future__ import annotations

import os
from collections.abc import Callable
from uuid import UUID

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import InvalidOption


class Ids:
    """Makes ids that sort by the time of their making, also within one millisecond.

    The 12 bits after the milliseconds hold their fraction, as RFC 9562 suggests, and the rest
    is random. Within one thread every id is greater than the one before it.
    """

    def __init__(self, clock: Clock | None = None, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock or SystemClock()
        self._random_bytes = random_bytes
        self._last = 0
        self._pool = b""
        self._process = 0

    def make(self) -> UUID:
        return self.make_many(1)[0]

    def make_many(self, count: int) -> list[UUID]:
        """As many ids, in rising order, for one look at the clock."""
        stamp = max(int(self._clock.now().timestamp() * 4096_000), self._last + 1)
        self._last = stamp + count - 1
        noise = self._draw(8 * count)
        # A stamp counts 1/4096 ms: whole milliseconds, then the version, then what is left of them.
        packed = [
            _SIXTEEN_BYTES + ((each >> 12) << 16 | 0x7000 | each & 0xFFF).to_bytes(8, "big") + noise[start : start + 8]
            for each, start in zip(range(stamp, stamp + count), range(0, 8 * count, 8), strict=True)
        ]
        # msgspec makes UUIDs from bytes several times faster than their constructor does.
        return _uuids.decode(b"\xdd" + count.to_bytes(4, "big") + b"".join(packed))

    def _draw(self, size: int) -> bytearray:
        """Randomness from a pool: asking the system gives up the interpreter's lock, which a busy process takes away.

        A forked child must not go on with its parent's pool, or they would make the same ids.
        """
        process = os.getpid()
        pool = self._pool
        if len(pool) < size or self._process != process:
            pool = self._random_bytes(max(size, _POOL))
            self._process = process
        self._pool = pool[size:]
        drawn = bytearray(pool[:size])
        drawn[::8] = drawn[::8].translate(_AS_VARIANT)
        return drawn


_POOL = 4096
_SIXTEEN_BYTES = b"\xc4\x10"
"""How MessagePack begins them."""
_AS_VARIANT = bytes(0x80 | (value & 0x3F) for value in range(256))
_uuids = msgspec.msgpack.Decoder(list[UUID])


def check_id(value: object, name: str = "id") -> UUID:
    """Accept an id as a UUID or its text; it must be one that Holdfast made."""
    try:
        given = value if isinstance(value, UUID) else UUID(value) if isinstance(value, str) else None
    except ValueError:
        given = None
    if given is None or given.version != 7:
        raise InvalidOption(f"{name}= takes a job's id (a UUIDv7), as job.id has it. Check where it comes from.")
    return given
