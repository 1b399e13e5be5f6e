"""Those who write to the file with connections of their own, and a file beside it that tells when one last did.

They can't be made to take turns, but whoever does may leave gaps for them. An unreadable or missing file means
that there are none: they wait longer then, and nothing else happens.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

REMEMBERED: Final = 60.0
"""Seconds. One that comes less often than this may find no gaps, and wait as if nobody knew of it."""
SIGNED_EVERY: Final = 1.0
LOOKED_AT_EVERY: Final = 0.25


class Guests:
    """The guest book of one database. Any thread may use it: at worst it is signed or looked at once more."""

    def __init__(self, database: Path) -> None:
        self._book = Path(f"{database}-guests")
        self._sign_again_at = 0.0
        self._look_again_at = 0.0
        self._are_about = False

    def sign(self) -> None:
        """A guest is at work here. Costs a system call a second at most, and never fails."""
        now = time.monotonic()
        if now >= self._sign_again_at:
            self._sign_again_at = now + SIGNED_EVERY
            with suppress(OSError):
                self._book.touch()

    def are_about(self) -> bool:
        """Whether guests were at work lately. Costs a few system calls a second at most."""
        now = time.monotonic()
        if now >= self._look_again_at:
            self._look_again_at = now + LOOKED_AT_EVERY
            self._are_about = self._has_been_signed()
        return self._are_about

    def _has_been_signed(self) -> bool:
        try:
            signed_at = os.stat(self._book).st_mtime
        except OSError:
            return False
        # The calendar may have been set back since: a time to come must not count for longer than one that is past.
        return abs(time.time() - signed_at) < REMEMBERED
