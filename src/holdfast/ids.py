"""Job ids: UUIDv7, made by the client before anything is sent, so that a lost answer can be asked for again."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
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
        upper = _upper_half(self._stamp(1))
        return _uuid.decode(b"\xc4\x10" + upper.to_bytes(8, "big") + self._draw(8))

    def make_many(self, count: int) -> list[UUID]:
        """As many ids, in rising order, for one look at the clock."""
        upper = struct.pack(f">{count}Q", *self._upper_halves(count))
        lower = self._draw(8 * count)
        # Laid out as MessagePack has them, byte by byte for all at once: msgspec makes UUIDs of that ten times as fast
        # as their constructor does.
        packed = bytearray(_ENTRY * count)
        for byte in range(8):
            packed[2 + byte :: len(_ENTRY)] = upper[byte::8]
            packed[10 + byte :: len(_ENTRY)] = lower[byte::8]
        return _uuids.decode(b"\xdd" + count.to_bytes(4, "big") + packed)

    def _stamp(self, count: int) -> int:
        """The time in 1/4096 ms, and later than all before. So many that follow it are taken as well."""
        stamp = max(int(self._clock.now().timestamp() * 4096_000), self._last + 1)
        self._last = stamp + count - 1
        return stamp

    def _upper_halves(self, count: int) -> Iterator[int]:
        return chain.from_iterable(_within_milliseconds(self._stamp(count), count))

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


def derived_id(at: datetime, *parts: bytes) -> UUID:
    """The one id that follows from these: made again from the same, it is the same, so that it is enqueued once."""
    upper = _upper_half(int(at.timestamp() * 4096_000))
    lower = bytearray(hashlib.blake2b(b"\0".join(parts), digest_size=8).digest())
    lower[0] = _AS_VARIANT[lower[0]]
    return UUID(bytes=upper.to_bytes(8, "big") + lower)


_POOL = 4096
_ENTRY = b"\xc4\x10" + bytes(16)
"""Sixteen bytes, as MessagePack begins them."""
_AS_VARIANT = bytes(0x80 | (value & 0x3F) for value in range(256))
_uuid = msgspec.msgpack.Decoder(UUID)
_uuids = msgspec.msgpack.Decoder(list[UUID])


def _upper_half(stamp: int) -> int:
    """The time and the version: whole milliseconds stand before the version."""
    return (stamp >> 12) << 16 | 0x7000 | stamp & 0xFFF


def _within_milliseconds(stamp: int, count: int) -> Iterator[range]:
    while count > 0:
        first = _upper_half(stamp)
        length = min(count, 4096 - (stamp & 0xFFF))
        yield range(first, first + length)
        stamp, count = stamp + length, count - length


def check_id(value: object, name: str = "id") -> UUID:
    """Accept an id as a UUID or its text; it must be one that Holdfast made."""
    try:
        given = value if isinstance(value, UUID) else UUID(value) if isinstance(value, str) else None
    except ValueError:
        given = None
    if given is None or given.version != 7:
        raise InvalidOption(f"{name}= takes a job's id (a UUIDv7), as job.id has it. Check where it comes from.")
    return given
