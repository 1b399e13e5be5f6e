"""The user that servers run as."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Account:
    """PostgreSQL and PgBouncer refuse to run as root, so root lends them the powers of `nobody`."""

    uid: int
    gid: int

    @classmethod
    def for_servers(cls) -> Account:
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        nobody = pwd.getpwnam("nobody")
        return cls(nobody.pw_uid, nobody.pw_gid)

    @property
    def is_lent(self) -> bool:
        return self.uid != os.geteuid()

    def options(self) -> dict[str, Any]:
        """What makes `subprocess` start a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.is_lent else {}

    def own(self, path: Path) -> None:
        if self.is_lent:
            os.chown(path, self.uid, self.gid)
