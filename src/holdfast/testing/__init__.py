"""What tests of Holdfast, of its users and of store authors are made with."""

from __future__ import annotations

from holdfast.testing.clock import ManualClock
from holdfast.testing.life import CrashPoint
from holdfast.testing.rehearsal import EndlessWork, Rehearsal

__all__ = ["CrashPoint", "EndlessWork", "ManualClock", "Rehearsal"]
