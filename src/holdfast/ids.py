"""Job ids: UUIDv7, made by the client before anything is sent, so that a lost answer can be asked for again."""

from __future__ import annotations

import os
from collections.abc import Callable
from uuid import UUID

from holdfast.clock import Clock, SystemClock
from holdfast.errors import InvalidOption

_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_TAIL = (1 << 62) - 1


class Ids:
    """Makes ids that sort by the time of their making, also within one millisecond.

    The 12 bits after the milliseconds hold their fraction, as RFC 9562 suggests,
    and the rest is random, drawn anew for each id: a forked child can't repeat
    its parent's ids. Within one thread every id is greater than the one before it.
    """

    def __init__(self, clock: Clock | None = None, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock or SystemClock()
        self._random_bytes = random_bytes
        self._last = 0

    def make(self) -> UUID:
        return self.make_many(1)[0]

    def make_many(self, count: int) -> list[UUID]:
        """As many ids, in rising order, for one look at the clock and one draw of randomness."""
        stamp = max(int(self._clock.now().timestamp() * 4096_000), self._last + 1)
        self._last = stamp + count - 1
        noise = self._random_bytes(8 * count)
        return [_uuid(stamp + index, int.from_bytes(noise[8 * index : 8 * index + 8], "big")) for index in range(count)]


def _uuid(stamp: int, noise: int) -> UUID:
    # stamp counts 1/4096 ms: its upper part is the 48-bit timestamp, its lower 12 bits fill rand_a
    number = (stamp >> 12) << 80 | (stamp & 0xFFF) << 64 | _VERSION_AND_VARIANT | (noise & _TAIL)
    return UUID(int=number)


def check_id(value: object) -> UUID:
    """Accept an id as a UUID or its text; it must be one that Holdfast made."""
    try:
        given = value if isinstance(value, UUID) else UUID(str(value)) if isinstance(value, str) else None
    except ValueError:
        given = None
    if given is None or given.version != 7:
        raise InvalidOption(
            "id= takes a job's id (a UUIDv7), as OutcomeUnknown carries it. Leave it out for a new job."
        )
    return given
