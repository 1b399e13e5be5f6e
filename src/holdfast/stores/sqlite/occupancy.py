"""When those who take turns at the write lock leave it to those who don't. No clock, no file.

A connection that is not ours waits for the lock with SQLite's own naps: up to 25 ms each in the first 128 ms of its
wait, up to 100 ms later. It finds a lock that is free for longer than its nap. So a lock that is busy all the time is
left alone now and then: often for a short while, for those who have just come, and more seldom for a long one, for
those who have been waiting since.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, Self

SHORT_NAP: Final = 0.025
"""Seconds. The longest of SQLite's naps in the first 128 ms of a wait."""
LONG_NAP: Final = 0.1
"""Seconds. The longest of all its naps."""
SHORT_GAP: Final = SHORT_NAP + 0.001
LONG_GAP: Final = LONG_NAP + 0.001
BUSY: Final = 0.1
"""Seconds of writing between two gaps. With one more transaction, they are over within the first 128 ms."""
LONG_GAP_EVERY: Final = 1.0
"""Seconds."""

_FORMAT = struct.Struct("<ddd")
SIZE: Final = _FORMAT.size
_ENDLESS: Final = 1e12


class Occupancy(NamedTuple):
    """How busy the write lock has been lately, with all processes together. Times are those of one monotonic clock."""

    held: float = 0.0
    """Seconds that it was held since the last gap, less those that it was free."""
    since: float = 0.0
    """When it was last taken or released."""
    rested_at: float = 0.0
    """When it was last free for as long as a long nap."""

    def gap(self, now: float) -> float:
        """Seconds for which whoever is next leaves the free lock alone; 0 if others have had their chance."""
        free = self.taken(now)
        if free.held < BUSY:
            return 0.0
        return LONG_GAP if now - free.rested_at >= LONG_GAP_EVERY else SHORT_GAP

    def taken(self, now: float) -> Self:
        """The lock was free until now. A lock that is free half of the time needs no gaps: each try finds it so."""
        free = now - self.since
        if not 0 <= free < LONG_NAP:  # a negative one is of another boot
            return self._replace(held=0.0, since=now, rested_at=now)
        held = 0.0 if free >= SHORT_NAP else max(self.held - free, 0.0)
        return self._replace(held=held, since=now)

    def released(self, now: float) -> Self:
        """The lock was held until now."""
        return self._replace(held=self.held + max(now - self.since, 0.0), since=now)

    def to_bytes(self) -> bytes:
        return _FORMAT.pack(*self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Of anything that `to_bytes` has not written: a lock that was never held."""
        found = cls(*_FORMAT.unpack(data)) if len(data) == SIZE else cls()
        return found if all(0 <= number < _ENDLESS for number in found) else cls()
